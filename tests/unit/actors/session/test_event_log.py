"""What a session tells its readers is what the store has, and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oubliette.actors.messages import GetSession, ReadEvents
from oubliette.actors.session.event_log import LOG_MESSAGES, EventLog, LogCommitted
from oubliette.actors.store.actor import Transact
from oubliette.config.schema import Config
from oubliette.errors import Conflict
from oubliette.kit import Actor, Message, Reply, System, handles
from oubliette.records import Session
from oubliette.runtime.store.operations import AppendEvents
from oubliette.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio

RECORD = Session(
    id="gogol_x", project_id="proj_x", workspace_id="w", principal="p", agent="scripted",
    status="running", created_at=0.0, updated_at=0.0, exploration_id="e",
)  # fmt: skip


ASK_SECONDS = 30.0  # that an ask waits unless it says otherwise


class EndTurn(Message):
    """The turn is over, as far as the actor knows."""


class WaitsForStore(Message, Reply[float | None]):
    """Since when readers are told that the store does not take its events."""


class SlowStore(Actor):
    """Answers when it is told to, and takes the same index of a log once."""

    def __init__(self, asked: asyncio.Event, commit: asyncio.Event) -> None:
        super().__init__()
        self._asked, self._commit = asked, commit
        self._taken: set[int] = set()

    @handles(Transact)
    async def _transact(self, message: Transact) -> Any:
        self._asked.set()
        await self._commit.wait()
        indexes = {e.index for op in message.ops if isinstance(op, AppendEvents) for e in op.events}
        if indexes & self._taken:
            raise Conflict("the log goes on with another index")
        self._taken |= indexes
        return tuple(op.events if isinstance(op, AppendEvents) else None for op in message.ops)


class OneTurn(Actor):
    """A session with a log and one turn."""

    running = True

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.log = EventLog(self, context, RECORD.id, lambda: not self.running)

    def on_start(self) -> None:
        stored: Any = SimpleNamespace(record=RECORD, tail=[], log_end=-1)
        self.writer = self.log.open(stored, 10)
        self.log.show()

    @handles(LogCommitted, at_once=True)
    def _committed(self, message: LogCommitted) -> None:
        self.log.committed(message)

    @handles(*LOG_MESSAGES)
    def _log_message(self, message: Message) -> None:
        self.log.take(message)

    @handles(GetSession)
    def _get(self, _: GetSession) -> Session:
        return self.log.record

    @handles(ReadEvents)
    def _read(self, message: ReadEvents) -> None:
        self.log.read(message, self.defer())

    @handles(WaitsForStore)
    def _waits(self, _: WaitsForStore) -> float | None:
        return self.log.unstored_since

    @handles(EndTurn)
    def _over(self, _: EndTurn) -> None:
        self.running = False
        self.writer.change(status="idle", final_response="done")
        self.writer.append("completion", {"final_text": "done"})


async def test_a_turn_is_over_for_readers_when_its_end_is_stored_not_before():
    asked, commit = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(5), System() as system:
        store = system.spawn(SlowStore, asked, commit)
        context: Any = SimpleNamespace(store=store, config=Config())
        session = system.spawn(OneTurn, context)
        session.tell(EndTurn())
        await asked.wait()
        before = await session.ask(ReadEvents(since_index=-1))
        assert (before.events, before.turn_done, before.session.status) == ((), False, "running")
        assert (await session.ask(GetSession())).final_response is None
        waits = asyncio.ensure_future(session.ask(ReadEvents(since_index=-1, wait_seconds=5.0)))
        commit.set()
        after = await waits
        assert ([event.type for event in after.events], after.turn_done) == (["completion"], True)
        assert (after.session.status, after.session.final_response) == ("idle", "done")


async def test_a_commit_that_takes_longer_than_an_ask_is_waited_for_and_not_made_twice():
    asked, commit, clock = asyncio.Event(), asyncio.Event(), VirtualClock()
    async with asyncio.timeout(5), System("test", clock, watchdog=None) as system:
        store = system.spawn(SlowStore, asked, commit)
        context: Any = SimpleNamespace(store=store, config=Config())
        session = system.spawn(OneTurn, context, name="session")
        session.tell(EndTurn())
        await asked.wait()
        began = clock.time()
        await clock.elapse(ASK_SECONDS - 1)
        assert await session.ask(WaitsForStore()) is None
        for _ in range(3):  # past the deadline of an ask, and of what is asked again after it
            await clock.elapse(ASK_SECONDS + 1)
        assert await session.ask(WaitsForStore()) == began
        commit.set()
        await clock.elapse(ASK_SECONDS)
        assert await session.ask(WaitsForStore()) is None
        assert system.lookup("session") is session, "it goes on: its state of the log is right"
        found = await session.ask(ReadEvents(since_index=-1))
        assert [event.type for event in found.events] == ["completion"]
