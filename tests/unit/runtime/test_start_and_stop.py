"""Stages of a server's start and stop: each is held to a limit."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from oubliette.errors import ConfigError, DeadlineExceeded
from oubliette.runtime import start_and_stop
from oubliette.runtime.start_and_stop import starting, stopping

pytestmark = pytest.mark.anyio


async def test_a_part_that_does_not_close_holds_up_no_other(capsys):
    closed = []

    async def close() -> None:
        closed.append("the other")

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(stopping, "the other", close, 5.0)
        stack.push_async_callback(stopping, "the stuck one", asyncio.Event().wait, 0.01)
    said = capsys.readouterr()
    assert closed == ["the other"]
    assert "the stuck one" in said.out + said.err


async def test_an_error_of_a_part_that_closes_is_not_taken_for_its_limit():
    async def close() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await stopping("one", close, 5.0)


async def test_a_stage_of_the_start_that_takes_too_long_is_named():
    with pytest.raises(DeadlineExceeded, match="the stage 'slow' took more than"):
        async with starting("slow", 0.01):
            await asyncio.Event().wait()


async def test_what_the_system_refuses_names_the_stage():
    with pytest.raises(ConfigError, match="the stage 'refused' failed: no such device"):
        async with starting("refused"):
            raise OSError("no such device")


@pytest.mark.parametrize(("slow", "level"), [(0.0, "info"), (60.0, "debug")])
async def test_a_stage_is_logged_at_the_usual_level_if_it_was_slow(monkeypatch, slow, level):
    monkeypatch.setattr(start_and_stop, "SLOW_SECONDS", slow)
    with capture_logs() as logged:
        async with starting("store"):
            pass
    assert [(each["stage"], each["log_level"]) for each in logged] == [("store", level)]
