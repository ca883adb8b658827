"""The log against a model of it: whatever is done in whatever order, a reader finds no gap (I1)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oubliette.errors import Conflict
from oubliette.records import Event
from oubliette.runtime.store import MEMORY, Database, operations, queries
from tests.unit.runtime.store.conftest import Store

SESSIONS = st.sampled_from(["s1", "s2", "s3"])
CALLERS = st.sampled_from([None, "me", "you"])
SIZES = st.integers(0, 300)


class LogMachine(RuleBasedStateMachine):
    """Appends, replays, gaps, failed transactions, cuts, purges and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder: str | None = None
        self.store: Store
        self.kept: dict[str, list[Event]] = {}
        """What of each log must be readable, as it was answered."""
        self.next: dict[str, int] = {}
        self.sources: dict[str, set[str]] = {}
        self.made = 0
        self.highest = 0

    @initialize(in_memory=st.booleans())
    def open(self, in_memory: bool) -> None:
        if in_memory:
            self.database = Database(MEMORY)
        else:
            self.folder = tempfile.mkdtemp(prefix="ob")
            self.database = Database(Path(self.folder) / "store.db")
        self.store = Store(self.database).start()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        if self.folder:
            shutil.rmtree(self.folder)

    def _event(self, session: str, index: int, size: int, caller: str | None, source: str | None):
        return Event(
            session_id=session,
            index=index,
            ts=1.0,
            type="message",
            data={"text": "x" * size},
            principal="p" if caller else "",
            caller_id=caller,
            source=source,
        )

    def _fresh(self, session: str, count: int, size: int, caller: str | None, numbered: bool):
        first = self.next.get(session, 0)
        batch = []
        for offset in range(count):
            self.made += 1
            index = first + offset if numbered else -1
            source = f"p:{self.made}:0" if self.made % 2 else None
            batch.append(self._event(session, index, size, caller, source))
        return batch

    def _accept(self, stored: tuple[Event, ...]) -> None:
        for event in stored:
            session = event.session_id
            assert event.index == self.next.get(session, 0)
            assert event.seq > self.highest
            self.highest = event.seq
            self.next[session] = event.index + 1
            self.kept.setdefault(session, []).append(event)
            if event.source:
                self.sources.setdefault(session, set()).add(event.source)

    @rule(s=SESSIONS, count=st.integers(0, 5), size=SIZES, caller=CALLERS, numbered=st.booleans())
    def append(self, s, count, size, caller, numbered):
        batch = self._fresh(s, count, size, caller, numbered)
        (stored,) = self.store.write(operations.AppendEvents(tuple(batch)))
        assert len(stored) == count
        self._accept(stored)

    @rule(s=SESSIONS, data=st.data(), fresh=st.integers(0, 3), in_front=st.booleans())
    def replay(self, s, data, fresh, in_front):
        """Sources that are in the log come again among new ones, under the next indexes."""
        known = sorted(self.sources.get(s, ()))
        old = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=4)) if known else []
        new = [event.source for event in self._fresh(s, fresh, 1, None, numbered=False)]
        sources = [*old, *new] if in_front else [*new, *old]
        start = self.next.get(s, 0)
        batch = [self._event(s, start + n, 5, None, source) for n, source in enumerate(sources)]
        (stored,) = self.store.write(operations.AppendEvents(tuple(batch)))
        assert [event.source for event in stored] == new
        self._accept(stored)

    @rule(s=SESSIONS, off=st.integers(-3, 3).filter(bool), other=SESSIONS)
    def leave_a_gap(self, s, off, other):
        index = self.next.get(s, 0) + off
        if index < 0:
            return
        before = self.store.read(queries.last_seq)
        harmless = () if other == s else tuple(self._fresh(other, 2, 1, "me", numbered=True))
        with pytest.raises(Conflict):
            self.store.write(
                operations.PutMeta("gap", "stored"),
                operations.AppendEvents((*harmless, self._event(s, index, 1, None, None))),
            )
        assert self.store.read(queries.meta, "gap") is None
        assert self.store.read(queries.last_seq) == before

    @rule(one=SESSIONS, two=SESSIONS)
    def append_to_several_in_one_batch(self, one, two):
        """Three requests, the middle one bad, handed in so that they may share a commit."""
        first = self.store.writer.submit(
            (operations.AppendEvents(tuple(self._fresh(one, 2, 1, "me", numbered=False))),)
        )
        bad = self.store.writer.submit(
            (
                operations.AppendEvents(tuple(self._fresh(two, 2, 1, "me", numbered=False))),
                operations.SettleCallerRequest("nothing", "result", 1.0),
            )
        )
        last = self.store.writer.submit(
            (operations.AppendEvents(tuple(self._fresh(two, 1, 1, "you", numbered=False))),)
        )
        self._accept(first.result(10)[0])
        assert bad.exception(10) is not None
        self._accept(last.result(10)[0])

    @rule(s=SESSIONS, up_to=st.integers(-2, 30))
    def cut(self, s, up_to):
        self.store.write(operations.DeleteSessionEvents(s, up_to))
        kept = self.kept.get(s, [])
        gone = [event for event in kept if event.index <= up_to]
        self.kept[s] = kept[len(gone) :]
        self.sources.setdefault(s, set()).difference_update(event.source for event in gone)

    @rule()
    def restart(self):
        if self.folder:
            self.store.close()
            self.database = Database(Path(self.folder) / "store.db")
            self.store = Store(self.database).start()

    @rule(s=SESSIONS, since=st.integers(-1, 40), most=st.integers(1, 7), size=st.integers(1, 900))
    def read_on_from_any_cursor(self, s, since, most, size):
        """Page by page to the end, as a client does."""
        kept = self.kept.get(s, [])
        end = self.next.get(s, 0) - 1
        first = kept[0].index if kept else end + 1
        expected = [event for event in kept if event.index > since]
        cursor, found = since, []
        while True:
            part = self.store.read(queries.log, s, cursor, most, size)
            assert (part.first_index, part.last_index) == (first, end)
            assert part.truncated_before == (first if cursor < first - 1 else None)
            assert len(part.events) <= most
            if len(part.events) > 1:
                assert sum(len(event.data["text"]) for event in part.events) <= size
            found += part.events
            if part.events:
                cursor = part.events[-1].index
            if not part.more:
                break
            assert part.events
        assert found == expected
        indexes = [event.index for event in found]
        assert indexes == list(range(end + 1 - len(indexes), end + 1))

    @rule(caller=st.sampled_from(["me", "you"]), data=st.data())
    def read_as_a_caller(self, caller, data):
        mine = sorted(
            (e for log in self.kept.values() for e in log if e.caller_id == caller),
            key=lambda event: event.seq,
        )
        after = data.draw(st.integers(0, self.highest))
        found = self.store.read(queries.caller_events, "p", caller, after)
        assert found == [event for event in mine if event.seq > after]

    @invariant()
    def no_log_has_a_gap(self):
        if not hasattr(self, "store"):
            return
        rows = self.store.read(
            lambda connection: connection.execute(
                "SELECT session_id, count(*), max(idx) - min(idx) + 1 FROM events GROUP BY 1"
            ).fetchall()
        )
        assert all(count == span for _, count, span in rows)
        assert {s: count for s, count, _ in rows} == {
            s: len(log) for s, log in self.kept.items() if log
        }


LogMachine.TestCase.settings = settings(stateful_step_count=30)
TestLog = LogMachine.TestCase
