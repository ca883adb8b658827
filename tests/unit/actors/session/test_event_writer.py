"""A session's uncommitted end and its committed tail (invariant I1)."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oubliette.actors.session.event_writer import MAX_UNCOMMITTED_EVENTS, EventWriter
from oubliette.records import CallerTool, Event, Session
from oubliette.runtime.store.operations import AppendEvents, PutSession
from tests import selection

RECORD = Session(
    id="gogol_x", project_id="proj_x", workspace_id="w", principal="p", agent="scripted",
    status="created", created_at=0.0, updated_at=0.0, exploration_id="e",
)  # fmt: skip


def writer(ring_size: int = 10) -> EventWriter:
    return EventWriter(RECORD, [], -1, ring_size=ring_size, now=lambda: 1.0, wake=lambda: None)


class JournalMachine(RuleBasedStateMachine):
    """A store that commits, or fails and is asked again; readers with any cursor."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = writer()
        self.log: list[Event] = []
        self.assigned: list[Event] = []
        self.under_way: Any = None
        self.promised = 0
        self.kept = 0

    @rule(text=st.text(max_size=20))
    def append(self, text: str) -> None:
        self.assigned.append(self.writer.append("message", {"text": text}))

    @rule()
    def promise(self) -> None:
        expected = len(self.assigned)
        self.promised += 1

        def kept() -> None:
            self.kept += 1
            assert len(self.log) >= expected

        self.writer.then(kept)

    @precondition(lambda self: self.under_way is None)
    @rule()
    def take(self) -> None:
        self.under_way = self.writer.take()

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def a_second_is_not_taken(self) -> None:
        assert self.writer.take() is None

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def commit(self) -> None:
        stored: tuple[Event, ...] = ()
        for op in self.under_way.ops:
            if isinstance(op, AppendEvents):
                stored = op.events
        self.log.extend(stored)
        self.under_way = None
        for callback in self.writer.committed(stored):
            callback()

    @rule(since=st.integers(-1, 60), count=st.integers(1, 5))
    def read(self, since: int, count: int) -> None:
        if not self.writer.in_memory(since):
            assert since + 1 < len(self.log)
            return
        found = self.writer.after(since, count, 1 << 20)
        assert list(found) == self.log[since + 1 : since + 1 + count]

    @invariant()
    def indexes_have_no_gap(self) -> None:
        assert [event.index for event in self.assigned] == list(range(len(self.assigned)))
        assert self.log == self.assigned[: len(self.log)]
        assert self.writer.log_end == len(self.log) - 1

    @invariant()
    def settled_means_that_all_is_kept(self) -> None:
        if self.writer.settled:
            assert self.kept == self.promised
            assert len(self.log) == len(self.assigned)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=selection.examples(60), stateful_step_count=30, deadline=None
)


def test_an_agent_is_held_back_when_too_much_is_uncommitted() -> None:
    held = writer()
    for _ in range(MAX_UNCOMMITTED_EVENTS):
        assert not held.full
        held.append("delta", {"text": "x"})
    assert held.full
    batch = held.take()
    assert batch is not None
    assert held.full
    held.committed(batch.events)
    assert not held.full


def test_one_large_event_holds_its_agent_back_too() -> None:
    held = writer()
    held.append("delta", {"text": "x" * (1 << 20)})
    assert held.full


def test_the_record_is_written_once_per_transaction_as_it_is_then() -> None:
    changed = writer()
    changed.change(status="running")
    changed.change(turn_count=3)
    batch = changed.take()
    assert batch is not None
    puts = [op for op in batch.ops if isinstance(op, PutSession)]
    assert [put.record for put in puts] == [
        msgspec.structs.replace(RECORD, status="running", turn_count=3, updated_at=1.0)
    ]


def test_the_tools_of_the_caller_are_written_when_they_change() -> None:
    def put(**changes: Any) -> PutSession:
        changed.change(**changes)
        batch = changed.take()
        assert batch is not None
        changed.committed(())
        (operation,) = (op for op in batch.ops if isinstance(op, PutSession))
        return operation

    changed = writer()
    tools = (CallerTool(name="add"),)
    assert put(caller_tools=tools).tools == tools
    later = put(turn_count=2)
    assert (later.tools, later.record.caller_tools) == (None, ())
    assert put(caller_tools=()).tools == ()


def test_events_of_a_session_with_a_caller_are_for_that_caller() -> None:
    lent = writer()
    assert lent.append("message", {}).caller_id is None
    lent.change(caller_id="shop")
    event = lent.append("message", {})
    assert (event.principal, event.caller_id) == ("p", "shop")


def test_every_event_counts_in_the_size_of_the_log_and_the_record_keeps_it() -> None:
    """Deltas, results and what came of a cancelled call: nothing is stored for free."""
    made = writer()
    for kind in ("message", "tool_result", "status"):
        made.append(kind, {"text": "x" * 10_000, "more": [{"a": "y" * 5_000}]})
    made.change(status="running")
    batch = made.take()
    assert batch is not None
    (stored,) = [op.record for op in batch.ops if isinstance(op, PutSession)]
    assert 45_000 <= stored.log_bytes < 60_000
    later = EventWriter(stored, [], 2, ring_size=10, now=lambda: 1.0, wake=lambda: None)
    later.append("message", {"text": "x"})
    assert later.log_bytes > stored.log_bytes
