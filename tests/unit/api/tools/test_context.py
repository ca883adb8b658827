"""A call belongs to no loop until it is run, and its tool does not keep a program from ending."""

from __future__ import annotations

import asyncio

import pytest

from oubliette.api.tools import Call, CallableTool, ToolCallRefused


def test_a_call_may_be_made_where_there_is_no_loop():
    shown: list[str] = []
    Call(on_progress=shown.append).progress("x")
    assert shown == ["x"]
    assert Call().progress("nobody listens") is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_not_swallowed(kind):
    def stop() -> None:
        raise kind

    async def stop_later() -> None:
        raise kind

    for function in (stop, stop_later):
        with pytest.raises(kind):
            asyncio.run(CallableTool(function).run({}, Call()))


class Outcome(BaseException):
    """What test frameworks raise so that no program handles it, as `pytest.fail` does."""


@pytest.mark.parametrize("kind", [Outcome, GeneratorExit])
def test_what_is_no_exception_is_an_answer_too(kind):
    def stop() -> None:
        raise kind("no order")

    async def stop_later() -> None:
        raise kind("no order")

    for function in (stop, stop_later):
        with pytest.raises(ToolCallRefused, match="no order"):
            asyncio.run(CallableTool(function).run({}, Call()))
