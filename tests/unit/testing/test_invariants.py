"""Invariants of logs: each is checked, and its first breach is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import NotFound
from oubliette.testing.invariants import (
    InvariantBroken,
    check_delivery,
    check_home,
    check_log,
)

Event = dict[str, Any]


def log(*events: Event, first: int = 0) -> list[Event]:
    """Events with the fields that all have."""
    return [
        {"session_id": "ses_1", "index": number, "seq": number * 3 + 1, **event}
        for number, event in enumerate(events, first)
    ]


def status(name: str, **more: Any) -> Event:
    return {"type": "status", "status": name, **more}


CREATED = status("created")
IDLE = status("idle")
ENDED = status("completed")


def turn(number: int, *inside: Event, outcome: str = "completed") -> list[Event]:
    done = {"type": "completion", "turn": number, "status": outcome, "final_text": ""}
    return [status("running", turn=number), *inside, done, IDLE]


def call(name: str) -> Event:
    return {"type": "tool_call", "call_id": name, "tool": "t"}


def result(name: str) -> Event:
    return {"type": "tool_result", "call_id": name, "tool": "t"}


def asked(name: str) -> Event:
    return {"type": "caller_tool_request", "request_id": name}


def settled(name: str) -> Event:
    return {"type": "caller_tool_settled", "request_id": name, "outcome": "result"}


WHOLE = log(
    CREATED,
    *turn(1, call("a"), asked("r"), settled("r"), result("a")),
    {"type": "completion", "turn": 2, "status": "interrupted", "final_text": ""},
    *turn(3),
    ENDED,
    CREATED,
    *turn(4),
)


def test_a_log_with_turns_calls_and_a_resume_is_right() -> None:
    check_log(WHOLE)


@given(st.integers(0, len(WHOLE)))
def test_the_beginning_of_a_right_log_is_right_unless_it_must_be_settled(count: int) -> None:
    check_log(WHOLE[:count], settled=False)


@given(st.integers(0, len(WHOLE) - 1))
def test_the_rest_of_a_right_log_is_right_from_its_floor(floor: int) -> None:
    check_log(WHOLE[floor:], floor=floor, settled=False)


@given(st.integers(0, len(WHOLE) - 2))
def test_a_log_that_lacks_any_event_is_wrong_and_the_next_one_is_named(gone: int) -> None:
    with pytest.raises(InvariantBroken, match="go up by one") as caught:
        check_log(WHOLE[:gone] + WHOLE[gone + 1 :])
    assert caught.value.event == WHOLE[gone + 1]


WRONG = {
    "two sessions": (log(CREATED, {**IDLE, "session_id": "ses_2"}), "events of one session"),
    "seq": (log(CREATED, {**status("running", turn=1), "seq": 1}), "seqs of a log go up"),
    "first status": (log(IDLE), "first status is idle"),
    "status": (log(CREATED, IDLE, CREATED), "created after idle"),
    "end": (log(CREATED, ENDED, status("failed")), "failed after completed"),
    "late": (log(CREATED, ENDED, {"type": "message"}), "finished session has no events of turns"),
    "two turns": (
        log(CREATED, status("running", turn=1), status("running", turn=2)),
        "turn 2 begins while turn 1 runs",
    ),
    "again": (log(CREATED, *turn(1), *turn(1)), "turn 1 begins a second time"),
    "backwards": (log(CREATED, *turn(2), *turn(1)), "turn 1 begins after 2"),
    "unfinished": (log(CREATED, status("running", turn=1)), "turn 1 has no completion"),
    "idle": (log(CREATED, status("running", turn=1), IDLE), "idle before turn 1 ended"),
    "completed twice": (log(CREATED, *turn(1), turn(1)[1]), "second completion"),
    "not running": (log(CREATED, turn(1)[1]), "turn 1 was not running"),
    "no result": (log(CREATED, *turn(1, call("a"))), "tool_call a has no tool_result"),
    "no call": (log(CREATED, *turn(1, result("a"))), "tool_result of a, which never began"),
    "two calls": (log(CREATED, *turn(1, call("a"), call("a"))), "a second tool_call a"),
    "open": (log(CREATED, *turn(1, asked("r"))), "r has no caller_tool_settled"),
    "settled twice": (
        log(CREATED, *turn(1, asked("r"), settled("r"), settled("r"))),
        "a second caller_tool_settled of r",
    ),
    "permission": (
        log(CREATED, *turn(1, {"type": "permission_request", "request_id": "p"})),
        "p has no permission_settled",
    ),
}


@pytest.mark.parametrize(("events", "detail"), WRONG.values(), ids=list(WRONG))
def test_each_breach_is_found_and_described(events: list[Event], detail: str) -> None:
    with pytest.raises(InvariantBroken, match=detail) as caught:
        check_log(events)
    assert caught.value.session_id.startswith("ses_")
    assert caught.value.event in events


def test_requests_that_came_as_references_have_outcomes_all_the_same() -> None:
    large = {"type": "tool_call", "ref": {"session_id": "ses_1", "index": 2}, "size": 1 << 20}
    check_log(log(CREATED, *turn(1, large, result("a"))))


def test_a_tool_call_of_a_turn_that_was_cut_off_needs_no_result() -> None:
    for outcome in ("interrupted", "failed"):
        cut = log(CREATED, *turn(1, call("a"), outcome=outcome))
        check_log(cut)
        check_log([*cut, *log(result("a"), first=len(cut))])


def received(*indexes: int, again: int | None = None) -> list[Event]:
    return [
        {**WHOLE[index], "redelivered": True} if index == again else WHOLE[index]
        for index in indexes
    ]


LOGS = {"ses_1": WHOLE}
EVERY = range(len(WHOLE))


def test_a_listener_may_get_a_request_again_and_begin_anywhere() -> None:
    check_delivery(WHOLE, LOGS)
    check_delivery(WHOLE[4:], LOGS)
    check_delivery([*WHOLE, {**WHOLE[3], "redelivered": True}], LOGS)
    check_delivery(received(*(index for index in EVERY if index != 3)), LOGS)  # it was settled


@pytest.mark.parametrize(
    ("events", "detail"),
    [
        (received(0, *range(2, len(WHOLE))), "never arrived"),
        (received(1, 0), "seq 1 after 4"),
        (received(0, 1, 1), "seq 4 after 4"),
        ([{**WHOLE[0], "status": "idle"}], "the log has"),
        (received(0, 1, again=1), "a status is redelivered"),
    ],
)
def test_events_that_are_lost_changed_or_repeated_are_found(
    events: list[Event], detail: str
) -> None:
    with pytest.raises(InvariantBroken, match=detail):
        check_delivery(events, LOGS)


def test_a_folder_without_a_database_is_no_home(tmp_path: Any) -> None:
    with pytest.raises(NotFound, match="no database"):
        check_home(tmp_path)
