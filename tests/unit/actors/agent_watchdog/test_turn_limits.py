"""What a turn may take."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.actors.agent_watchdog.turn_limits import TurnLimitReached, TurnLimits, TurnOverdue
from oubliette.contract.limits import TreesConfig
from oubliette.records import Limits
from oubliette.runtime.agents import AcpAdapter, DroidAdapter, OpencodeAdapter
from oubliette.runtime.agents.handshake_adapter import Json, Opening, line_of

NOW = 1000.0


def limits() -> TurnLimits:
    """What the configuration allows a turn: a minute, seven steps."""
    return TurnLimits(TreesConfig(max_turn_seconds=60.0, max_turn_steps=7))


def test_the_configuration_holds_where_the_project_says_nothing() -> None:
    own = Limits(max_turn_steps=2)
    turn = limits()
    assert turn.turn_started(4, NOW, NOW, own) == 60.0
    assert turn.overdue(TurnOverdue(turn=4), 4, own) == TurnLimitReached(
        "max_turn_seconds",
        "the turn has taken 60 seconds, as many as it may (trees.max_turn_seconds)",
    )


def test_as_many_steps_as_allowed_are_allowed() -> None:
    own = Limits(max_turn_steps=2)
    assert limits().stepped(2, own) is None
    assert limits().stepped(3, own) == TurnLimitReached(
        "max_turn_steps",
        "the turn has taken 2 steps of its model, as many as it may (max_turn_steps of its"
        " project)",
    )


@pytest.mark.parametrize(
    ("since", "left"), [(NOW - 50, 10.0), (NOW - 500, 0.0), (NOW + 3600, 60.0)]
)
def test_the_time_goes_on_with_the_next_server(since: float, left: float) -> None:
    turn = limits()
    assert turn.turn_started(4, since, NOW, Limits()) == left
    # attached again
    assert turn.turn_started(4, since, NOW, Limits()) is None


def test_each_turn_has_its_time() -> None:
    turn = limits()
    assert turn.turn_started(4, NOW - 50, NOW, Limits()) == 10.0
    assert turn.turn_started(5, NOW, NOW, Limits()) == 60.0


def test_a_turn_that_has_ended_is_not_overdue() -> None:
    turn = limits()
    turn.turn_started(4, NOW, NOW, Limits())
    assert turn.overdue(TurnOverdue(turn=4), 5, Limits()) is None
    assert turn.overdue(TurnOverdue(turn=4), None, Limits()) is None


# ------------------------------------------------------------------ what a step is

OPENING = Opening(cwd="/workspace")
OURS = "msg_0123456789aboub00000000001"


def _acp(**update: Any) -> Json:
    return {"method": "session/update", "params": {"update": update}}


def _chunk(message: str | None, text: str = "x") -> Json:
    content = {"type": "text", "text": text}
    return _acp(sessionUpdate="agent_message_chunk", content=content, messageId=message)


def _call(name: str, status: str) -> Json:
    kind = "tool_call" if status == "pending" else "tool_call_update"
    return _acp(sessionUpdate=kind, toolCallId=name, status=status)


def _droid(**note: Any) -> Json:
    params = {"notification": note}
    return {"type": "notification", "method": "droid.session_notification", "params": params}


def _opencode(name: str) -> Json:
    info = {"id": name, "role": "assistant", "sessionID": "s", "parentID": OURS}
    return {"event": {"type": "message.updated", "properties": {"info": info}}}


THOUGHT = _acp(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "hm"})
ANSWER = _droid(type="create_message", message={"role": "assistant", "content": []})


@pytest.mark.parametrize(
    ("adapter", "messages", "steps"),
    [
        (AcpAdapter, [THOUGHT, _chunk("a"), _chunk("a"), _call("1", "pending")], 1),
        (AcpAdapter, [_chunk(None), _chunk(None)], 1),
        (AcpAdapter, [_chunk("a"), _chunk("b"), _chunk("c")], 3),
        (
            AcpAdapter,
            [_chunk("a"), _call("1", "pending"), _call("2", "pending"), _call("1", "completed")]
            + [_call("2", "failed"), THOUGHT, _chunk("b")],
            2,
        ),
        (DroidAdapter, [ANSWER, _droid(type="assistant_text_delta", textDelta="x"), ANSWER], 2),
        (OpencodeAdapter, [_opencode("m1"), _opencode("m1"), _opencode("m2")], 2),
    ],
)
def test_a_step_is_an_answer_of_the_model(adapter: Any, messages: list[Json], steps: int) -> None:
    state = {"ready": True, "agent_session_id": "s"}
    reading = adapter(OPENING, state)
    reading.feed(b"".join(map(line_of, messages)), 0)
    assert reading.steps == steps
