"""What the demo prints while it waits."""

from __future__ import annotations

import asyncio
import logging

import pytest

import oubliette
from oubliette.cli.demo import lines as demo_lines
from oubliette.cli.demo.lines import DemoOutput, LogLines, described
from oubliette.errors import DeadlineExceeded

pytestmark = pytest.mark.anyio


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was printed; silence is short here."""
    lines: list[str] = []
    monkeypatch.setattr(demo_lines, "SILENCE", 0.01)
    monkeypatch.setattr("sys.stdout.write", lines.append)
    return lines


async def until(said: list[str], count: int) -> None:
    async with asyncio.timeout(10):
        while len(said) < count:
            await asyncio.sleep(0.001)


async def test_in_silence_it_is_said_again_and_again_what_is_waited_for(said: list[str]) -> None:
    lines = DemoOutput()
    lines.say("agent", "is running")
    async with (
        lines.reminding(),
        lines.waiting("the end of the turn", 100.0),
        lines.waiting("an answer", 50.0),
    ):
        await until(said, 3)
    for line in said[1:3]:
        assert "demo     waits for an answer, at most 50 s more; last: agent is running" in line


async def test_nothing_is_said_of_waiting_where_nothing_is_waited_for(said: list[str]) -> None:
    lines = DemoOutput()
    async with lines.reminding():
        await asyncio.sleep(0.1)
        assert said == []
        async with lines.waiting("an answer", 50.0):
            await until(said, 1)
    assert "waits for an answer" in said[0]


async def test_what_was_waited_for_in_vain_is_named_with_the_last_that_was_seen(
    said: list[str],
) -> None:
    lines = DemoOutput()
    lines.say("agent", "is running")
    with pytest.raises(DeadlineExceeded, match="0.01 s for an answer in vain; last it saw: agent"):
        async with lines.waiting("an answer", 0.01):
            await asyncio.Event().wait()
    assert len(said) == 1


def test_what_the_api_logs_is_a_line_of_the_demo(said: list[str]) -> None:
    handler = LogLines(DemoOutput())
    log = logging.getLogger("oubliette.http")
    log.addHandler(handler)
    try:
        log.warning("connection refused; trying again for %d s", 60)
    finally:
        log.removeHandler(handler)
    assert said[0].endswith("demo     connection refused; trying again for 60 s\n")


def test_events_that_say_nothing_to_readers_have_no_line() -> None:
    assert described(oubliette.Message(text="done")) == "says: done"
    assert described(oubliette.ToolResult(call_id="c", is_error=True)) == "gets refused: null"
    assert not described(oubliette.Delta(text="do"))
    assert not described(oubliette.SystemEvent(kind="usage"))
