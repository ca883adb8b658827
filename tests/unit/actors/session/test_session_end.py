"""Reasons and order of a session's end, on plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.messages import EndSession
from oubliette.actors.session.effects import AppendEvent, ChangeRecord
from oubliette.actors.session.messages import AgentGone, LimitNotice
from oubliette.actors.session.session_end import EndOfSession, RequestedEnd, limit_noticed
from tests.unit.runtime.store.samples import session as sample

if TYPE_CHECKING:
    from oubliette.records import Session


def record(**changes: Any) -> Session:
    return msgspec.structs.replace(sample(), **{"ended_by": None, **changes})


def ask(
    end: RequestedEnd, reason: str, *, final: bool = True, of: Session | None = None, **at: bool
) -> Any:
    message = EndSession(reason=reason, final=final)
    fields = {"finished": False, "released": False, **at}
    return end.requested(message, of or record(), **fields)


def begun(reason: str, *, final: bool) -> RequestedEnd:
    end = RequestedEnd()
    end.begin(record(ending=reason, ending_final=final), 5.0)
    return end


def test_the_first_request_is_recorded_and_begins_the_end() -> None:
    end = RequestedEnd()
    change = ChangeRecord({"ending": "stop", "ending_final": False})
    assert ask(end, "stop", final=False) == ((change,), "begin")
    assert end.reason is None  # until it begins
    end.begin(record(ending="stop", ending_final=False), 5.0)
    assert (end.reason, end.final, end.since) == ("stop", False, 5.0)
    assert end.end == EndOfSession("ended", "completed", "stop")


def test_only_a_final_request_changes_an_end_that_can_be_resumed() -> None:
    end = begun("stop", final=False)
    assert ask(end, "again", final=False) == ((), None)
    change = ChangeRecord({"ending": "session_end", "ending_final": True})
    assert ask(end, "session_end") == ((change,), None)
    assert (end.reason, end.final) == ("session_end", True)
    assert ask(end, "later") == ((), None)
    assert end.reason == "session_end"


@pytest.mark.parametrize(
    ("final", "released", "ended_by", "changes"),
    [(True, False, None, True), (True, True, None, False), (False, False, None, False),
     (True, False, "session_end", False)],
)  # fmt: skip
def test_a_finished_session_may_still_be_ended_so_that_nothing_resumes_it(
    final: bool, released: bool, ended_by: str | None, changes: bool
) -> None:
    effects, step = ask(
        RequestedEnd(), "why", final=final, of=record(ended_by=ended_by), finished=True,
        released=released,
    )  # fmt: skip
    assert effects == ((ChangeRecord({"ended_by": "why"}),) if changes else ())
    assert step is None


def test_the_end_of_an_agent_that_was_to_end_is_no_failure() -> None:
    gone = AgentGone(reason="killed", signal=15)
    assert begun("stop", final=True).agent_gone(gone, "running", None) == (
        (),
        EndOfSession("ended", "completed", "stop"),
    )


@pytest.mark.parametrize(
    ("status", "start_failed", "given_up", "step", "reason"),
    [
        ("running", False, None, "agent_lost", "killed"),
        ("running", False, "too slow", "agent_lost", "too slow"),
        ("created", True, None, "start_failed", "killed"),
        ("idle", True, None, "agent_lost", "killed"),
    ],
)
def test_an_agent_that_is_lost_fails_its_session(
    status: Any, start_failed: bool, given_up: Any, step: Any, reason: str
) -> None:
    gone = AgentGone(reason="killed", signal=9, start_failed=start_failed)
    effects, end = RequestedEnd().agent_gone(gone, status, given_up)
    shown = {"message": "killed", "exit_code": None, "signal": 9}
    assert effects == (AppendEvent("error", shown),)
    assert end == EndOfSession(step, "failed", reason)


@pytest.mark.parametrize(
    ("action", "type_", "ends"),
    [("warn", "system", False), ("interrupt", "error", False), ("time_out", "error", True)],
)
def test_a_limit_is_an_event_and_the_time_limit_ends_the_session(
    action: Any, type_: str, ends: bool
) -> None:
    notice = LimitNotice(limit="max", action=action, message="enough")
    effects, end = limit_noticed(notice)
    assert effects == (AppendEvent(type_, {"kind": "limit", "limit": "max", "message": "enough"}),)
    expected = EndOfSession("time_ran_out", "timed_out", "enough")
    assert end == (expected if ends else None)
