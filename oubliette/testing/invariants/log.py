"""Invariants of one session's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.actors.session import lifecycle
from oubliette.records import TERMINAL
from oubliette.testing.invariants.broken import InvariantBroken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oubliette.records import SessionStatus

INDEXES: Final = "indexes of a log go up by one"
SEQS: Final = "the seqs of a log go up"
ONE_SESSION: Final = "a log has the events of one session"
STATUSES: Final = "a status follows from the one before it"
TURNS: Final = "one turn runs at a time, and each begins once"
COMPLETIONS: Final = "each turn that began has one completion"
PAIRS: Final = "each request has one outcome, after it"
FINISHED: Final = "a finished session has no events of turns"

_PAIRS: Final = {
    "tool_call": ("tool_result", "call_id"),
    "caller_tool_request": ("caller_tool_settled", "request_id"),
    "permission_request": ("permission_settled", "request_id"),
}
"""Type of a request → type of its outcome, and the field that both have."""
_OUTCOMES: Final = {outcome: (kind, key) for kind, (outcome, key) in _PAIRS.items()}
_OF_TURNS: Final = frozenset({"delta", "message", "completion", *_PAIRS})
"""Types of which a finished session has none."""


def check_log(events: Iterable[Mapping[str, Any]], *, floor: int = 0, settled: bool = True) -> None:
    """Check the log of one session, from its first event or from `floor` to its last.

    Args:
        events: As `session_events` returns them.
        floor: Index of the first event that is kept (`truncated_before`).
        settled: Whether everything that began must have ended: no turn runs. False for a log of a
            running session.

    Raises:
        InvariantBroken: an invariant does not hold.
    """
    checker = LogChecker(floor=floor)
    for event in events:
        checker.add(event)
    if settled:
        checker.check_settled()


class LogChecker:
    """Checker of one log, event by event; `add` raises at the first one that is wrong.

    Args:
        floor: Index of the first event that is kept. Above 0, outcomes of earlier requests and
            turns are accepted.
    """

    def __init__(self, *, floor: int = 0) -> None:
        self._cut = floor > 0
        self._next = floor
        self._last_seq = -1
        self._session_id = ""
        self._status: SessionStatus | None = None
        self._running: Mapping[str, Any] | None = None
        self._begun: set[int] = set()
        self._completed: set[int] = set()
        self._open: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._asked: set[tuple[str, str]] = set()
        self._given_up: set[tuple[str, str]] = set()
        """Tool calls of turns that were cut off: their results may be missing, or late."""
        self._unread: set[str] = set()
        """Types of which an event came as a reference, without its fields."""

    @property
    def status(self) -> SessionStatus | None:
        """Status after the last event; None before the first one."""
        return self._status

    @property
    def turns(self) -> int:
        """Number of turns that began."""
        return len(self._begun)

    def add(self, event: Mapping[str, Any]) -> None:
        """Take the next event.

        Raises:
            InvariantBroken: it breaks an invariant.
        """
        self._check_place(event)
        kind = str(event["type"])
        if self._status in TERMINAL and kind in _OF_TURNS:
            raise InvariantBroken(FINISHED, f"a {kind} after the status {self._status}", event)
        if kind == "status":
            self._change_status(event)
        elif kind == "completion":
            self._complete(event)
        elif "ref" in event and kind in {*_PAIRS, *_OUTCOMES}:
            self._unread.add(_OUTCOMES[kind][0] if kind in _OUTCOMES else kind)
        elif kind in _PAIRS:
            self._begin_pair(kind, _PAIRS[kind][1], event)
        elif kind in _OUTCOMES:
            self._end_pair(kind, event)

    def check_settled(self) -> None:
        """Check that no turn, call or request is open.

        Raises:
            InvariantBroken: one is.
        """
        if self._running is not None:
            turn = self._running["turn"]
            raise InvariantBroken(COMPLETIONS, f"turn {turn} has no completion", self._running)
        for (kind, key), event in self._open.items():
            if kind in self._unread:
                continue
            outcome = _PAIRS[kind][0]
            raise InvariantBroken(PAIRS, f"the {kind} {key} has no {outcome}", event)

    def _check_place(self, event: Mapping[str, Any]) -> None:
        index, seq = event["index"], event["seq"]
        if index != self._next:
            raise InvariantBroken(INDEXES, f"index {index} where {self._next} is next", event)
        if seq <= self._last_seq:
            raise InvariantBroken(SEQS, f"seq {seq} after {self._last_seq}", event)
        session_id = str(event.get("session_id", self._session_id))
        if self._session_id and session_id != self._session_id:
            raise InvariantBroken(ONE_SESSION, f"after events of {self._session_id}", event)
        self._next, self._last_seq, self._session_id = index + 1, seq, session_id

    def _change_status(self, event: Mapping[str, Any]) -> None:
        following: SessionStatus = event["status"]
        before = self._status
        if before is None:
            if following != "created" and not self._cut:
                raise InvariantBroken(STATUSES, f"the first status is {following}", event)
        elif not lifecycle.may_follow(before, following):
            raise InvariantBroken(STATUSES, f"{following} after {before}", event)
        if following == "running":
            self._begin_turn(event)
        elif self._running is not None and following in {"idle", *TERMINAL}:
            turn = self._running["turn"]
            raise InvariantBroken(COMPLETIONS, f"{following} before turn {turn} ended", event)
        self._status = following

    def _begin_turn(self, event: Mapping[str, Any]) -> None:
        turn = event.get("turn")
        if not isinstance(turn, int):
            raise InvariantBroken(TURNS, "running without the number of a turn", event)
        if self._running is not None:
            other = self._running["turn"]
            raise InvariantBroken(TURNS, f"turn {turn} begins while turn {other} runs", event)
        if turn in self._begun or turn in self._completed:
            raise InvariantBroken(TURNS, f"turn {turn} begins a second time", event)
        if self._begun and turn < max(self._begun):
            raise InvariantBroken(TURNS, f"turn {turn} begins after {max(self._begun)}", event)
        self._begun.add(turn)
        self._running = event

    def _complete(self, event: Mapping[str, Any]) -> None:
        turn = event.get("turn")
        if turn is None:
            return  # a result of the agent without a turn: it is logged all the same
        if turn in self._completed:
            raise InvariantBroken(COMPLETIONS, f"turn {turn} has a second completion", event)
        self._completed.add(turn)
        if event.get("status") != "completed":
            self._give_up(turn)
        if self._running is not None and turn == self._running["turn"]:
            self._running = None
            return
        never_begun = turn not in self._begun and event.get("status") == "interrupted"
        if not (never_begun or self._cut):
            raise InvariantBroken(COMPLETIONS, f"turn {turn} was not running", event)

    def _give_up(self, turn: int) -> None:
        """Stop to expect the results of tool calls of a turn that did not complete."""
        calls = [
            key
            for key, event in self._open.items()
            if key[0] == "tool_call" and event.get("turn", turn) == turn
        ]
        for key in calls:
            del self._open[key]
        self._given_up.update(calls)

    def _begin_pair(self, kind: str, field: str, event: Mapping[str, Any]) -> None:
        key = kind, str(event[field])
        if key in self._asked:
            raise InvariantBroken(PAIRS, f"a second {kind} {key[1]}", event)
        self._asked.add(key)
        self._open[key] = event

    def _end_pair(self, outcome: str, event: Mapping[str, Any]) -> None:
        kind, field = _OUTCOMES[outcome]
        key = kind, str(event[field])
        if key in self._open:
            del self._open[key]
        elif key in self._given_up:
            self._given_up.remove(key)
        elif key in self._asked:
            raise InvariantBroken(PAIRS, f"a second {outcome} of {key[1]}", event)
        elif self._cut or kind in self._unread:
            self._asked.add(key)
        else:
            raise InvariantBroken(PAIRS, f"a {outcome} of {key[1]}, which never began", event)
