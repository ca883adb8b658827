"""A stream that moves to another node goes on at its cursor: it skips nothing and repeats nothing."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.callers import HttpCaller
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.requires("postgres")]

NAMES = ("alpha", "beta")
WORK = "\n".join(["emit 10 20", "sleep 0.1"] * 6)
PIECE = 7
"""Events after which the stream moves."""
SECONDS = 60.0


class Program:
    """A program with a session on each node, which work at the same time."""

    def __init__(self, callers: list[HttpCaller]) -> None:
        self.callers = callers
        self.sessions: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.moves = 0

    async def begin(self) -> None:
        first = self.callers[0]
        for name in NAMES:
            labels = {"labels": {"name": name}}
            project = await first.call("project_create", name=name, placement=labels)
            made = await first.call(
                "session_spawn", project_id=project["id"], prompt=WORK, context=first.context
            )
            self.sessions.append(made["session_id"])

    def over(self, events: list[dict[str, Any]]) -> bool:
        ended = {each["session_id"] for each in events if each["type"] == "completion"}
        return ended >= set(self.sessions)

    def take(self, events: list[dict[str, Any]]) -> None:
        self.events += events
        self.moves += 1

    async def check(self) -> None:
        """Each event of both logs, up to the end of the turn, was read once and in order."""
        assert self.moves > 4
        assert [each["seq"] for each in self.events] == sorted(each["seq"] for each in self.events)
        for session_id in self.sessions:
            page = await self.callers[0].call("session_events", session_id=session_id)
            read = [each for each in self.events if each["session_id"] == session_id]
            assert len(read) > PIECE
            assert read == page["events"][: len(read)]
            assert any(each["type"] == "completion" for each in read)


@pytest.fixture
async def program(postgres_url: str) -> AsyncIterator[Program]:
    async with Nodes(postgres_url) as nodes, contextlib.AsyncExitStack() as stack:
        for name in NAMES:
            await nodes.start(name, **{"cluster.labels": [f"name={name}"]})
        key = await nodes.key("alpha")
        callers = [HttpCaller(nodes.servers[name].url, key) for name in NAMES]
        for each in callers:
            await stack.enter_async_context(each)
        yield Program(callers)


async def test_a_listener_goes_on_at_another_node(program: Program) -> None:
    await program.begin()
    after = 0
    for caller in itertools.cycle(program.callers):
        begun = len(caller.events)
        await caller.listen(after=after, observe=True)
        while True:
            found = [each for each in caller.events[begun:] if "index" in each]
            if len(found) >= PIECE or program.over(program.events + found):
                break
            await caller.event(after=len(caller.events), timeout=SECONDS)
        await caller.stop_listening()
        # The others are lost with the connection.
        program.take(found[:PIECE])
        after = program.events[-1]["seq"]
        if program.over(program.events):
            break
    await program.check()


async def test_pages_of_all_events_go_on_at_another_node(program: Program) -> None:
    await program.begin()
    after = -1
    for caller in itertools.cycle(program.callers):
        page = await caller.call("event_list", after=after, max_events=PIECE, wait_seconds=20)
        program.take(page["events"])
        after = page["next"]
        if program.over(program.events):
            break
    await program.check()
