"""What a turn may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from oubliette.actors.session.turn_limits import TurnLimits, TurnOverdue
from oubliette.config.schema import TreesConfig
from oubliette.records import Limits
from oubliette.runtime.agents import AcpAdapter, DroidAdapter, OpencodeAdapter
from oubliette.runtime.agents.handshake_adapter import Json, Opening, line_of

NOW = 1000.0


class Session:
    """What `TurnLimits` knows of a session."""

    def __init__(self, limits: Limits) -> None:
        trees = TreesConfig(max_turn_seconds=60.0, max_turn_steps=7)
        self.context = SimpleNamespace(config=SimpleNamespace(trees=trees))
        self.writer = SimpleNamespace(record=SimpleNamespace(limits=limits))
        self.clock = SimpleNamespace(time=lambda: NOW)
        self.turn: int | None = 4
        self.due: list[tuple[float, TurnOverdue]] = []
        self.given_up: list[tuple[str, dict[str, str]]] = []
        self.watchdog = SimpleNamespace(
            give_up=lambda reason, **more: self.given_up.append((reason, more))
        )
        self.limits = TurnLimits(cast("Any", self))

    def after(self, seconds: float, message: TurnOverdue) -> None:
        self.due.append((seconds, message))


def test_the_configuration_holds_where_the_project_says_nothing() -> None:
    session = Session(Limits(max_turn_steps=2))
    session.limits.turn_started(4, NOW)
    ((seconds, message),) = session.due
    assert seconds == 60.0
    session.limits.overdue(message)
    told = "the turn has taken 60 seconds, as many as it may (trees.max_turn_seconds)"
    assert session.given_up == [(told, {"kind": "limit", "limit": "max_turn_seconds"})]


def test_as_many_steps_as_allowed_are_allowed() -> None:
    session = Session(Limits(max_turn_steps=2))
    session.limits.stepped(2)
    assert session.given_up == []
    session.limits.stepped(3)
    told = (
        "the turn has taken 2 steps of its model, as many as it may (max_turn_steps of its project)"
    )
    assert session.given_up == [(told, {"kind": "limit", "limit": "max_turn_steps"})]


@pytest.mark.parametrize(("since", "left"), [(NOW - 50, 10.0), (NOW - 500, 0.0)])
def test_the_time_goes_on_with_the_next_server(since: float, left: float) -> None:
    session = Session(Limits())
    session.limits.turn_started(4, since)
    session.limits.turn_started(4, since)  # attached again
    assert [seconds for seconds, _ in session.due] == [left]


def test_a_turn_that_has_ended_is_not_overdue() -> None:
    session = Session(Limits())
    session.limits.turn_started(4, NOW)
    session.turn = 5
    session.limits.overdue(session.due[0][1])
    assert session.given_up == []


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
