"""The summary of failed tests names the exceptions of a group, and where each was raised."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys

from tests.exception_groups import shown


def test_each_exception_of_a_group_is_shown_with_its_place() -> None:
    try:
        raise OSError(107, "not connected")
    except OSError as error:
        raised = error
    inner = ExceptionGroup("inner", [TimeoutError("late")])
    text = shown(ExceptionGroup("outer", [raised, inner]))
    first, second = text.split(" and ")
    assert first.startswith("OSError(107, 'not connected') at ")
    assert first.partition(":")[0].endswith("test_exception_groups.py")
    assert second == "TimeoutError('late') that was never raised"


class Forgotten(asyncio.Protocol):
    """Protocol of a connection that is not closed."""


async def left_open() -> None:
    """Connect two sockets, and forget one that nothing is read from."""
    here, there = socket.socketpair()
    with there:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(Forgotten, sock=here)
        transport.pause_reading()  # else the loop holds it
        del transport, _
        gc.collect()
        here.close()


def test_a_connection_that_was_not_closed_is_shown_with_its_protocol(monkeypatch) -> None:
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: seen.append(told.exc_value))
    asyncio.run(left_open())
    raised = RuntimeError("unraisable")
    raised.__cause__ = seen[0]
    assert "Forgotten" in shown(ExceptionGroup("two", [raised, ValueError("x")]))


def test_another_exception_has_no_parts() -> None:
    assert shown(ValueError("x")) == ""
