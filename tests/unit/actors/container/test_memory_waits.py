"""Who waits for memory in a container, and the one answer that each of them gets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.container.jobs import RoomTaken
from oubliette.actors.container.lease_memory import LeaseMemory
from oubliette.actors.container.memory_queue import MemoryQueue
from oubliette.actors.container.messages import StageChanged
from oubliette.errors import ContainerLost
from oubliette.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = pytest.mark.anyio


class Answer:
    """Takes the place of a deferred answer."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def set_error(self, error: BaseException) -> None:
        self.error = error


class Mailbox:
    """Takes the place of an actor: runs its jobs, and keeps the messages of those that ended."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.got: asyncio.Queue[RoomTaken] = asyncio.Queue()

    def pipe_to_self(
        self, job: Coroutine[Any, Any, Any], mapped: Callable[[Any], RoomTaken], _: Any
    ) -> asyncio.Task[None]:
        async def run() -> None:
            self.got.put_nowait(mapped(await job))

        return asyncio.ensure_future(run())


class Waits:
    """The waits for a container of 1000 MB, of which one agent has 800."""

    def __init__(self) -> None:
        self.memory = LeaseMemory(1000)
        self.memory.hold("first", 800, starts=True)
        self.mailbox = Mailbox()
        mailbox: Any = self.mailbox
        self.told: list[tuple[str, StageChanged]] = []
        self.waits = MemoryQueue(
            self.memory.room, mailbox, lambda session, stage: self.told.append((session, stage))
        )

    async def begin(self, session_id: str) -> Any:
        """Let a session wait; its answer."""
        assert not self.memory.hold(session_id, 800, starts=True)
        answer: Any = Answer()
        self.waits.begin(session_id, 800, answer)
        await asyncio.sleep(0)  # the job begins
        return answer


async def test_an_answer_is_due_once_another_has_given_its_memory_back() -> None:
    scene = Waits()
    answer = await scene.begin("second")
    scene.memory.give_back("first")
    async with asyncio.timeout(5):
        taken = await scene.mailbox.got.get()
    assert taken == RoomTaken(session_id="second", taken=True)
    assert scene.waits.taken(taken) is answer
    assert scene.waits.taken(taken) is None, "it is due once"


async def test_a_session_is_told_why_its_agent_waits_and_when_it_does_not_any_more() -> None:
    scene = Waits()
    await scene.begin("second")
    ((session_id, waits),) = scene.told
    assert (session_id, waits.stage, waits.state) == ("second", "memory", "progress")
    assert "800 of 1000 MB are counted" in waits.detail
    assert "600 s at most" in waits.detail
    assert "agents.memory" in waits.remedy
    scene.mailbox.clock.advance(2.0)
    scene.memory.give_back("first")
    async with asyncio.timeout(5):
        await scene.mailbox.got.get()
    assert [(stage.state, stage.elapsed_ms) for _, stage in scene.told[1:]] == [("done", 2000)]


async def test_who_leaves_gets_an_error_and_takes_no_memory() -> None:
    scene = Waits()
    answer = await scene.begin("second")
    scene.waits.leave("second")
    assert isinstance(answer.error, ContainerLost)
    scene.memory.give_back("first")
    scene.memory.give_back("second")
    assert scene.memory.hold("third", 800, starts=True)


async def test_a_second_wait_of_a_session_ends_the_first() -> None:
    scene = Waits()
    first = await scene.begin("second")
    second = await scene.begin("second")
    assert isinstance(first.error, ContainerLost)
    scene.memory.give_back("first")
    async with asyncio.timeout(5):
        taken = await scene.mailbox.got.get()
    assert scene.waits.taken(taken) is second
    assert second.error is None


async def test_a_wait_that_ended_without_memory_leaves_nothing_to_answer() -> None:
    scene = Waits()
    await scene.begin("second")
    assert scene.waits.taken(RoomTaken(session_id="second", taken=False)) is None
    assert scene.waits.taken(RoomTaken(session_id="unknown", taken=True)) is None
