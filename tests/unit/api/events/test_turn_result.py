"""Results of turns: the fold over a turn's events, and the errors that it ends with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.api.errors import SessionFailed, TurnInterrupted
from oubliette.api.events import (
    Event,
    TurnFold,
    Usage,
    decode_event,
    plain_result,
    result_of,
    usage_of,
)
from oubliette.errors import Unavailable


def log(*entries: dict[str, Any], turn: int = 1) -> list[Event]:
    return [
        decode_event({"session_id": "gogol_1", "index": place, "turn": turn, **entry})
        for place, entry in enumerate(entries)
    ]


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "text": text}


def used(**fields: Any) -> dict[str, Any]:
    return {"type": "system", "kind": "usage", **fields}


def ended(status: str = "completed", text: str | None = "done") -> dict[str, Any]:
    return {"type": "completion", "status": status, "final_text": text}


CALL = {"type": "tool_call", "call_id": "c", "tool": "shop_find", "arguments": {"order": "A-17"}}
RESULT = {"type": "tool_result", "call_id": "c", "tool": "shop_find", "is_error": False}


def test_a_turn_has_its_text_its_calls_and_its_usage() -> None:
    result = result_of(
        log(
            {"type": "status", "status": "running"},
            used(cost_usd=0.5, input_tokens=10, output_tokens=2),
            CALL,
            {**RESULT, "result": {"x": 1}},
            used(cost_usd=0.25, tokens=7),
            said("done"),
            ended(),
        )
    )
    assert (result.text, result.session_id, result.turn, result.status) == (
        "done",
        "gogol_1",
        1,
        "completed",
    )
    assert result.usage == Usage(cost_usd=0.75, input_tokens=10, output_tokens=2, tokens=19)
    (call,) = result.tool_calls
    assert (call.tool, call.arguments, call.result, call.is_error) == (
        "shop_find",
        {"order": "A-17"},
        {"x": 1},
        False,
    )


def test_a_call_without_a_result_has_failed() -> None:
    (call,) = result_of(log(CALL, ended())).tool_calls
    assert (call.result, call.is_error) == (None, True)


def test_a_failed_turn_is_an_error_with_the_reason() -> None:
    with pytest.raises(SessionFailed, match="turn 3 of gogol_1 failed: no model") as caught:
        result_of(log(said("hm"), ended("failed", "no model"), turn=3))
    assert (caught.value.reason, caught.value.session_id, caught.value.turn) == (
        "no model",
        "gogol_1",
        3,
    )


def test_the_reason_is_the_error_if_the_agent_ends_with_its_last_message() -> None:
    error = {"type": "error", "message": "no model"}
    with pytest.raises(SessionFailed) as caught:
        result_of(log(said("hm"), error, ended("failed", "hm")))
    assert caught.value.reason == "no model"
    with pytest.raises(SessionFailed) as caught:
        result_of(log(said("hm"), error, ended("failed", "the agent crashed")))
    assert caught.value.reason == "the agent crashed"


def test_an_interrupted_turn_is_an_error_with_the_text_so_far() -> None:
    with pytest.raises(TurnInterrupted) as caught:
        result_of(log({"type": "delta", "text": "On"}, {"type": "delta", "text": "ce"},
                      ended("interrupted", None)))  # fmt: skip
    assert (caught.value.text, caught.value.turn) == ("Once", 1)


def test_a_session_that_ends_without_a_completion_is_a_failure() -> None:
    over = {"type": "status", "status": "timed_out", "reason": "it took too long", "turn": None}
    with pytest.raises(SessionFailed, match="it took too long"):
        result_of(log(said("hm"), over))
    refused = {"type": "error", "kind": "not_run", "message": "the session is over"}
    with pytest.raises(SessionFailed, match="the session is over"):
        result_of(log(refused))


def test_a_turn_that_runs_has_no_result_yet() -> None:
    fold = TurnFold(1)
    for event in log(said("hm")):
        assert fold.add(event)
    assert not fold.done
    assert (fold.so_far().text, fold.so_far().status) == ("hm", "running")
    with pytest.raises(Unavailable, match="has not ended"):
        fold.result()


def test_events_of_other_turns_and_sessions_are_ignored() -> None:
    events = [*log(said("old"), ended(text="old"), turn=1), *log(said("new"), ended(text="new"),
                                                                 turn=2)]  # fmt: skip
    assert result_of(events, turn=2).text == "new"
    assert result_of(events).text == "old"
    fold = TurnFold(1, "gogol_2")
    assert [fold.add(event) for event in events] == [False] * 4


def test_a_cost_is_unknown_unless_it_is_reported() -> None:
    assert result_of(log(used(tokens=5), ended())).usage.cost_usd is None
    assert usage_of(log(used(cost_usd=0, input_tokens=1))).cost_usd == 0.0
    assert (Usage() + Usage(cost_usd=1.0)).cost_usd == 1.0


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["cost_usd", "tokens", "input_tokens", "output_tokens"]),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        )
    )
)
def test_usage_adds_up_and_never_shrinks(reports: list[dict[str, Any]]) -> None:
    total = Usage()
    for report in reports:
        more = total + usage_of(log(used(**report)))
        assert (more.cost_usd or 0) >= (total.cost_usd or 0)
        assert more.tokens >= total.tokens >= total.input_tokens + total.output_tokens
        total = more


@pytest.mark.parametrize(
    ("reported", "plain"),
    [
        ("text", "text"),
        ({"x": 1}, {"x": 1}),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "text", "text": "{}"}], "structuredContent": {"x": 1}}, {"x": 1}),
        ({"content": [{"type": "image"}]}, {"content": [{"type": "image"}]}),
        ({"content": "plain"}, {"content": "plain"}),
        (None, None),
    ],
)
def test_the_result_of_a_tool_is_taken_out_of_its_envelope(reported: Any, plain: Any) -> None:
    assert plain_result(reported) == plain
