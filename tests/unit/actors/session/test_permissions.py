"""Permission requests of an agent and the decisions on them, on plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.messages import AnswerPermission
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    ChangeRecord,
    DecisionStored,
    PassFailpoint,
    SendDecision,
    StartTimer,
    Store,
)
from oubliette.actors.session.permissions import (
    ANSWERED,
    CROWDED,
    DECIDED,
    MAX_KIND,
    MAX_OPEN,
    OVER,
    OVERDUE,
    REMEMBERED,
    PermissionOverdue,
    Permissions,
    TreePlace,
)
from oubliette.records import PermissionRequest
from oubliette.runtime.store.operations import PutPermission

if TYPE_CHECKING:
    from oubliette.actors.session.effects import Effects

NOW = 1000.0
TIMEOUT = 300.0
PLACE = TreePlace("alice", "shop", ["gogol_0", "gogol_1"])
ASKED = {"request_id": "7", "asks_for": "shell", "text": "rm -r build"}


def fresh() -> Permissions:
    return Permissions("gogol_1", TIMEOUT)


def ask(permissions: Permissions, **changes: Any) -> Effects:
    given: dict[str, Any] = {
        "turn": 1, "place": PLACE, "remembered": {}, "free": False, "event_index": 5, "now": NOW,
    }  # fmt: skip
    data = changes.pop("data", ASKED)
    return permissions.asked(data, "p:1:0", **given | changes)


def put(effects: Effects) -> PermissionRequest:
    """The only request that is stored."""
    (request,) = (
        each.operation.record
        for each in effects
        if isinstance(each, Store) and isinstance(each.operation, PutPermission)
    )
    return request


def event(effects: Effects) -> AppendEvent:
    (found,) = (each for each in effects if isinstance(each, AppendEvent))
    return found


def decision(request: PermissionRequest, **changes: Any) -> AnswerPermission:
    fields: dict[str, Any] = {
        "principal": "alice", "request_id": request.id, "decision": "allow"
    }  # fmt: skip
    return AnswerPermission(**fields | changes)


def decided(
    request: PermissionRequest, what: Any, reason: str, at: float, by: str | None = None
) -> PermissionRequest:
    return msgspec.structs.replace(request, decision=what, reason=reason, settled_at=at, by=by)


def stored(effects: Effects) -> DecisionStored:
    """What follows when the decision is in the log."""
    (after,) = (each for each in effects if isinstance(each, AfterCommit))
    assert isinstance(after.effect, DecisionStored)
    return after.effect


def test_a_request_goes_to_the_caller_of_the_root_with_its_deadline_and_ancestry() -> None:
    permissions = fresh()
    effects = ask(permissions)
    request = put(effects)
    assert (request.principal, request.caller_id) == ("alice", "shop")
    assert (request.agent_request_id, request.asks_for, request.turn) == ("7", "shell", 1)
    assert (request.created_at, request.deadline) == (NOW, NOW + TIMEOUT)
    assert (request.event_index, request.decision) == (5, None)
    shown = {
        **ASKED,
        "request_id": request.id,
        "deadline": NOW + TIMEOUT,
        "ancestry": PLACE.ancestry,
        "caller_id": "shop",
    }
    assert effects == (
        AppendEvent("permission_request", shown, "p:1:0", "shop", "alice"),
        Store(PutPermission(request)),
        StartTimer(TIMEOUT, PermissionOverdue(request_id=request.id)),
        PassFailpoint("session.permission_asked"),
    )
    assert permissions.waiting


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"asks_for": "shell", "text": "t"}, "shell"),
        ({"text": "may I?"}, "may I?"),
        ({}, "anything"),
        ({"text": "x" * 600}, "x" * MAX_KIND),
    ],
)
def test_the_scope_of_a_decision_is_the_kind_else_the_question(data: Any, kind: str) -> None:
    assert put(ask(fresh(), data=data)).asks_for == kind


def test_a_caller_that_decides_is_waited_for_by_name() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    (wait,) = permissions.waits()
    assert (wait.kind, wait.since, wait.until) == ("permission", NOW, NOW + TIMEOUT)
    assert request.id in (wait.detail or "")
    assert wait.caller == ("alice", "shop")
    ask(permissions, place=TreePlace("alice", None, []))
    assert [each.caller for each in permissions.waits()] == [("alice", "shop"), None]


def test_a_decision_is_in_the_log_before_the_agent_gets_it() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    effects = permissions.answered(decision(request), {}, 1, NOW + 3)
    settled = decided(request, "allow", ANSWERED, NOW + 3, by="alice")
    shown = {
        "request_id": request.id,
        "asks_for": "shell",
        "decision": "allow",
        "reason": ANSWERED,
        "by": "alice",
        "remember": "once",
        "caller_id": "shop",
    }
    assert effects == (
        AppendEvent("permission_settled", shown, None, "shop", "alice"),
        Store(PutPermission(settled)),
        AfterCommit(DecisionStored(settled, 1)),
    )
    assert not permissions.waiting
    assert permissions.stored(stored(effects), 1, attached=True) == (SendDecision(settled),)


def test_a_decision_for_the_session_is_added_to_those_that_are_remembered() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    answer = decision(request, decision="deny", remember=True)
    effects = permissions.answered(answer, {"web": "allow"}, 1, NOW)
    assert effects is not None
    assert effects[0] == ChangeRecord({"remembered": {"web": "allow", "shell": "deny"}})
    assert event(effects).data["remember"] == "session"


def test_a_decision_on_what_is_not_open_changes_nothing() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    assert permissions.answered(decision(request, request_id="another"), {}, 1, NOW) is None
    assert permissions.waiting


def test_the_log_names_another_than_the_caller_that_decided() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    effects = permissions.answered(decision(request, principal="operator"), {}, 1, NOW)
    assert effects is not None
    shown = event(effects).data
    assert (shown["by"], shown["reason"]) == ("operator", DECIDED)


def test_only_the_first_decision_counts() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    assert permissions.answered(decision(request), {}, 1, NOW)
    assert permissions.answered(decision(request, decision="deny"), {}, 1, NOW) is None
    assert permissions.overdue(PermissionOverdue(request_id=request.id), 1, NOW) == ()


def test_a_request_without_a_decision_is_denied_at_its_deadline() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    effects = permissions.overdue(PermissionOverdue(request_id=request.id), 1, NOW + TIMEOUT)
    assert put(effects) == decided(request, "deny", OVERDUE, NOW + TIMEOUT)
    assert stored(effects).turn == 1


def test_a_request_that_nobody_could_decide_as_nothing_could_be_stored_has_its_time_anew() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    back = NOW + TIMEOUT + 50
    late = PermissionOverdue(request_id=request.id).after_outage(back)
    again = StartTimer(TIMEOUT - 1, PermissionOverdue(request_id=request.id))
    assert permissions.overdue(late, 1, back + 1) == (again,)
    effects = permissions.overdue(late, 1, back + TIMEOUT)
    assert put(effects) == decided(request, "deny", OVERDUE, back + TIMEOUT)


def test_an_outage_before_a_request_gives_it_no_more_time() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    late = PermissionOverdue(request_id=request.id).after_outage(NOW - 1)
    effects = permissions.overdue(late, 1, NOW + TIMEOUT)
    assert put(effects) == decided(request, "deny", OVERDUE, NOW + TIMEOUT)


@pytest.mark.parametrize("remembered", ["allow", "deny"])
def test_a_kind_that_was_decided_for_the_session_is_not_asked_again(remembered: Any) -> None:
    permissions = fresh()
    effects = ask(permissions, remembered={"shell": remembered})
    settled = put(effects)
    assert (settled.decision, settled.reason, settled.event_index) == (remembered, REMEMBERED, 5)
    shown = event(effects)
    assert (shown.type, shown.source, shown.caller_id) == ("system", "p:1:0", None)
    assert shown.data == {
        **ASKED,
        "request_id": settled.id,
        "kind": "permission",
        "decision": remembered,
        "reason": REMEMBERED,
    }
    assert stored(effects) == DecisionStored(settled, 1)
    assert not permissions.waiting


def test_more_than_may_wait_are_denied_at_once() -> None:
    permissions = fresh()
    for _ in range(MAX_OPEN):
        assert put(ask(permissions)).decision is None
    settled = put(ask(permissions))
    assert (settled.decision, settled.reason) == ("deny", CROWDED)
    assert len(list(permissions.waits())) == MAX_OPEN


def test_a_turn_that_ends_settles_what_is_open_and_tells_no_agent() -> None:
    permissions = fresh()
    first, second = put(ask(permissions)), put(ask(permissions))
    effects = permissions.turn_ended(NOW + 9)
    puts = [each.operation for each in effects if isinstance(each, Store)]
    assert puts == [PutPermission(decided(each, "deny", OVER, NOW + 9)) for each in (first, second)]
    for each in effects:
        if isinstance(each, AfterCommit):
            assert isinstance(each.effect, DecisionStored)
            assert permissions.stored(each.effect, None, attached=True) == ()
    assert not permissions.waiting
    assert permissions.attached() == ()


def test_a_decision_whose_turn_has_ended_meanwhile_is_not_sent() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    effects = permissions.answered(decision(request), {}, 1, NOW)
    assert effects is not None
    permissions.turn_ended(NOW)
    assert permissions.stored(stored(effects), 2, attached=True) == ()
    assert permissions.attached() == ()


def test_an_agent_that_is_away_gets_the_decision_when_it_is_attached() -> None:
    permissions = fresh()
    request = put(ask(permissions))
    effects = permissions.answered(decision(request), {}, 1, NOW)
    assert effects is not None
    assert permissions.stored(stored(effects), 1, attached=False) == ()
    settled = stored(effects).request
    assert permissions.attached() == (SendDecision(settled),)
    assert permissions.attached() == (SendDecision(settled),)  # until the turn ends
    permissions.turn_ended(NOW)
    assert permissions.attached() == ()


def test_after_a_restart_an_open_request_waits_for_the_rest_of_its_time() -> None:
    request = put(ask(fresh()))
    permissions = fresh()
    effects = permissions.recover([request], 1, NOW + 100)
    assert effects == (StartTimer(TIMEOUT - 100, PermissionOverdue(request_id=request.id)),)
    assert permissions.waiting
    set_back = fresh().recover([request], 1, NOW - 3600)
    assert set_back == (StartTimer(TIMEOUT, PermissionOverdue(request_id=request.id)),)
    late = fresh().recover([request], 1, NOW + TIMEOUT + 1)
    assert late == (StartTimer(0.0, PermissionOverdue(request_id=request.id)),)


def test_after_a_restart_a_decision_of_the_running_turn_is_sent_again() -> None:
    settled = decided(put(ask(fresh())), "allow", ANSWERED, NOW)
    permissions = fresh()
    assert permissions.recover([settled], 1, NOW) == ()
    assert permissions.attached() == (SendDecision(settled),)


@pytest.mark.parametrize("turn", [None, 2])
def test_after_a_restart_what_was_open_in_an_earlier_turn_is_settled(turn: int | None) -> None:
    request = put(ask(fresh()))
    old = decided(put(ask(fresh())), "allow", ANSWERED, NOW)
    permissions = fresh()
    effects = permissions.recover([request, old], turn, NOW)
    assert put(effects) == decided(request, "deny", OVER, NOW)
    assert permissions.stored(stored(effects), turn, attached=True) == ()
    assert permissions.attached() == ()
    assert not permissions.waiting
