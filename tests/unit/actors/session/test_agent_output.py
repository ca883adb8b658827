"""Items of an agent's output and what follows from them, on plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.session.agent_messages import effects_of
from oubliette.actors.session.effects import (
    AppendEvent,
    AskPermission,
    BeginTurn,
    ChangeRecord,
    HearSystem,
)
from oubliette.actors.session.messages import OutputEvent
from oubliette.actors.session.state import SessionActorState
from tests.unit.runtime.store.samples import session as sample

if TYPE_CHECKING:
    from oubliette.actors.session.effects import Effects

SOURCE = "p:10:0"


def follows(
    kind: str,
    data: dict[str, Any],
    state: SessionActorState | None = None,
    given_up: str | None = None,
) -> Effects:
    item = OutputEvent(type=kind, data=data, offset=10, ordinal=0, ack=10)
    record = msgspec.structs.replace(sample(), status="running")
    return effects_of(item, SOURCE, state or running(), record, given_up)


def running() -> SessionActorState:
    state = SessionActorState("gogol_1", attached=True)
    state.submit("go", None, 0.0)
    state.begin("idle", held_up=False)
    return state


def completion(effects: Effects) -> dict[str, Any]:
    (data,) = (
        each.data for each in effects if isinstance(each, AppendEvent) and each.type == "completion"
    )
    return data


@pytest.mark.parametrize(
    ("kind", "data", "type_", "shown"),
    [
        ("turn_started", {"turn": 1}, "system", {"kind": "turn_started", "turn": 1}),
        ("message", {"text": "hi"}, "message", {"text": "hi", "role": "assistant"}),
        ("thought", {"text": "hm"}, "thought", {"text": "hm"}),
        ("tool_call", {"call_id": "1"}, "tool_call", {"call_id": "1"}),
        ("ready", {}, "system", {"kind": "ready"}),
    ],
)
def test_an_item_is_an_event_with_its_position(
    kind: str, data: Any, type_: str, shown: Any
) -> None:
    assert follows(kind, data) == (AppendEvent(type_, shown, SOURCE),)


def test_a_ready_agent_may_name_its_own_session() -> None:
    change, event = follows("ready", {"agent_session_id": "as"})
    assert change == ChangeRecord({"agent_session_id": "as", "agent_forks": None})
    assert isinstance(event, AppendEvent)


@pytest.mark.parametrize(("told", "kept"), [("turn", "turn"), ("end", "end"), ("never", None)])
def test_a_ready_agent_tells_where_it_can_fork(told: str, kept: str | None) -> None:
    change, _ = follows("ready", {"agent_session_id": "as", "forks": told})
    assert change == ChangeRecord({"agent_session_id": "as", "agent_forks": kept})


def test_an_agent_that_could_not_fork_gets_the_record_of_the_conversation() -> None:
    change, _ = follows("ready", {"agent_session_id": "as", "forked": False})
    assert isinstance(change, ChangeRecord)
    assert change.fields["conversation"] == "transcript"
    change, _ = follows("ready", {"agent_session_id": "as", "forked": True})
    assert isinstance(change, ChangeRecord)
    assert "conversation" not in change.fields


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"kind": "x"}, {"kind": "x"}),
        ({"type": "retry"}, {"type": "retry", "kind": "retry"}),
        ({"n": 1}, {"n": 1}),
    ],
)
def test_a_system_item_is_in_the_log_before_the_watchdog_has_it(data: Any, shown: Any) -> None:
    assert follows("system", data) == (AppendEvent("system", shown, SOURCE), HearSystem(data))


def test_a_question_goes_to_the_permissions() -> None:
    assert follows("permission_request", {"text": "?"}) == (AskPermission({"text": "?"}, SOURCE),)


def test_the_last_error_is_the_result_of_a_failed_turn() -> None:
    state = running()
    assert follows("error", {"message": "429"}, state) == (
        AppendEvent("error", {"message": "429"}, SOURCE),
    )
    assert state.last_error == "429"
    follows("error", {}, state)
    assert state.last_error is None


@pytest.mark.parametrize(
    ("data", "given_up", "outcome", "text"),
    [
        ({"status": "completed", "final_text": "ok"}, None, "completed", "ok"),
        ({"final_text": "ok"}, None, "completed", "ok"),
        ({"status": "completed", "final_text": 3}, None, "completed", ""),
        ({"status": "interrupted", "final_text": "x"}, None, "interrupted", "x"),
        ({"status": "interrupted", "final_text": "x"}, "too slow", "failed", "too slow"),
        ({"status": "completed", "final_text": "ok"}, "too slow", "completed", "ok"),
        ({"status": "failed", "final_text": "part"}, None, "failed", "429"),
        ({"status": "failed"}, None, "failed", "429"),
        ({"status": "fell asleep"}, None, "failed", "429"),
    ],
)
def test_a_turn_ends_as_reported_or_as_failed_if_it_was_given_up(
    data: Any, given_up: str | None, outcome: str, text: str
) -> None:
    state = running()
    follows("error", {"message": "429"}, state)
    effects = follows("completion", data, state, given_up)
    shown = completion(effects)
    assert (shown["status"], shown["final_text"]) == (outcome, text)
    assert effects[-1] == BeginTurn()
