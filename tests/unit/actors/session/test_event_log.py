"""What a session tells its readers is what the store has, and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oubliette.actors.messages import GetSession, ReadEvents
from oubliette.actors.session.event_log import LoggedSession
from oubliette.actors.session.memory import SessionMemory
from oubliette.actors.session.write_batch import EventWriter
from oubliette.actors.store.actor import Transact
from oubliette.kit import Actor, Message, System, handles
from oubliette.records import Session
from oubliette.runtime.store.operations import AppendEvents

pytestmark = pytest.mark.anyio

RECORD = Session(
    id="gogol_x", project_id="proj_x", workspace_id="w", principal="p", agent="scripted",
    status="running", created_at=0.0, updated_at=0.0, exploration_id="e",
)  # fmt: skip


class EndTurn(Message):
    """The turn is over, as far as the actor knows."""


class SlowStore(Actor):
    """Answers when it is told to."""

    def __init__(self, asked: asyncio.Event, commit: asyncio.Event) -> None:
        super().__init__()
        self._asked, self._commit = asked, commit

    @handles(Transact)
    async def _transact(self, message: Transact) -> Any:
        self._asked.set()
        await self._commit.wait()
        return tuple(op.events if isinstance(op, AppendEvents) else None for op in message.ops)


class OneTurn(LoggedSession):
    running = True

    def on_start(self) -> None:
        self.writer = EventWriter(
            RECORD, [], -1, ring_size=10, now=lambda: 1.0, wake=self._wake_flush
        )
        self._show()

    @property
    def quiet(self) -> bool:
        return not self.running

    @handles(EndTurn)
    def _over(self, _: EndTurn) -> None:
        self.running = False
        self.writer.change(status="idle", final_response="done")
        self.writer.append("completion", {"final_text": "done"})


async def test_a_turn_is_over_for_readers_when_its_end_is_stored_not_before():
    asked, commit = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(5), System() as system:
        store = system.spawn(SlowStore, asked, commit)
        context: Any = SimpleNamespace(store=store)
        session = system.spawn(OneTurn, context, RECORD.id, SessionMemory())
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
