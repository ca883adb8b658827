"""Deadlines of an agent and what follows from them, on plain data."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oubliette.actors.agent_watchdog.messages import (
    ContactOverdue,
    InterruptOverdue,
    PromptWithdrawn,
    StartOverdue,
)
from oubliette.actors.agent_watchdog.silence import SilenceCheck
from oubliette.actors.agent_watchdog.turn_interrupt import INTERRUPT_LIMIT
from oubliette.actors.agent_watchdog.turn_limits import TurnOverdue
from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog, WatchInput
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    ChangeRecord,
    EndAgentProcess,
    EndRunningTurn,
    EndUndeliveredTurn,
    GiveUpAgent,
    InterruptAgent,
    StartTimer,
    WithdrawTurn,
)
from oubliette.config.schema import AgentsConfig
from oubliette.contract.limits import TreesConfig
from oubliette.records import Limits
from tests.unit.runtime.store.samples import session as sample

AGENTS = AgentsConfig()
TREES = TreesConfig()
NOW = 100.0
WALL = 5000.0


def watchdog(slow_start: str = "") -> AgentWatchdog:
    return AgentWatchdog(AGENTS, TREES, slow_start)


def given(**changes: Any) -> WatchInput:
    fields: dict[str, Any] = {
        "process_id": "proc_1", "agent_ready": True, "agent_contacted": True, "agent": "scripted",
    }  # fmt: skip
    record = sample(**fields | changes.pop("record", {}))
    state: dict[str, Any] = {
        "turn": 1, "wall": WALL, "now": NOW, "attached": True, "reachable": True,
        "served": False, "waits": False,
    }  # fmt: skip
    return WatchInput(record=record, **state | changes)


def running(turn: int = 1) -> AgentWatchdog:
    """A watchdog in a turn that began now."""
    dog = watchdog()
    dog.turn_started(turn, given(turn=turn))
    return dog


# ---------------------------------------------------------------- a start


def test_an_agent_that_is_attached_first_has_its_time_to_be_ready() -> None:
    effects = watchdog().attached(given(record={"agent_ready": False}, turn=None), again=False)
    overdue = StartOverdue(process_id="proc_1")
    assert effects == (StartTimer(AGENTS.start_timeout_seconds, overdue),)


def test_an_agent_that_is_ready_has_its_time_to_start_our_server() -> None:
    effects = watchdog().attached(given(record={"agent_contacted": False}, turn=None), again=False)
    overdue = ContactOverdue(process_id="proc_1")
    assert effects == (StartTimer(AGENTS.contact_timeout_seconds, overdue),)


def test_an_agent_whose_streams_are_open_again_has_no_new_deadlines() -> None:
    fresh = given(record={"agent_ready": False})
    assert watchdog().attached(fresh, again=True) == ()


@pytest.mark.parametrize("contacts", [True, False])
def test_a_new_process_has_shown_nothing_yet(contacts: bool) -> None:
    changed = {"agent_ready": False, "agent_contacted": not contacts}
    assert watchdog().starting(contacts=contacts) == (ChangeRecord(changed),)


def test_the_first_output_makes_it_ready_and_starts_the_time_for_contact() -> None:
    fresh = given(record={"agent_ready": False, "agent_contacted": False})
    assert watchdog().heard("message", {}, fresh) == (
        ChangeRecord({"agent_ready": True}),
        StartTimer(AGENTS.contact_timeout_seconds, ContactOverdue(process_id="proc_1")),
    )
    known = given(record={"agent_ready": False})
    assert watchdog().heard("message", {}, known) == (ChangeRecord({"agent_ready": True}),)
    assert watchdog().heard("message", {}, given()) == ()


def test_an_agent_that_is_not_ready_in_time_is_given_up_with_the_remedy() -> None:
    dog = watchdog("mount a cache")
    fresh = given(record={"agent_ready": False})
    (gone,) = dog.overdue(StartOverdue(process_id="proc_1"), fresh)
    assert isinstance(gone, GiveUpAgent)
    assert gone.start_failed
    assert "mount a cache, or raise agents.start_timeout_seconds" in gone.reason
    assert dog.overdue(StartOverdue(process_id="proc_0"), fresh) == ()
    assert dog.overdue(StartOverdue(process_id="proc_1"), given()) == ()


def test_an_agent_that_has_not_started_our_server_in_time_is_given_up() -> None:
    dog = watchdog()
    silent = given(record={"agent_contacted": False})
    (gone,) = dog.overdue(ContactOverdue(process_id="proc_1"), silent)
    assert isinstance(gone, GiveUpAgent)
    assert not gone.start_failed
    assert dog.overdue(ContactOverdue(process_id="proc_1"), given()) == ()


def test_contact_is_recorded_once() -> None:
    silent = given(record={"agent_contacted": False}).record
    assert watchdog().contacted(silent) == (ChangeRecord({"agent_contacted": True}),)
    assert watchdog().contacted(given().record) == ()


# ---------------------------------------------------------------- a turn


def test_a_turn_has_a_limit_of_silence_and_of_time() -> None:
    own = {"limits": Limits(max_turn_seconds=60.0)}
    effects = watchdog().turn_started(1, given(record=own))
    assert effects == (
        StartTimer(AGENTS.silence_timeout_seconds, SilenceCheck(turn=1)),
        StartTimer(60.0, TurnOverdue(turn=1)),
    )


def test_a_turn_that_was_watched_before_gets_no_second_timers() -> None:
    dog = running()
    assert dog.turn_started(1, given(now=NOW + 1)) == ()


def test_a_turn_that_began_under_an_earlier_server_has_the_rest_of_its_time() -> None:
    dog = watchdog()
    dog.recover({}, WALL - 40.0)
    effects = dog.attached(given(record={"limits": Limits(max_turn_seconds=60.0)}), again=False)
    assert StartTimer(20.0, TurnOverdue(turn=1)) in effects


def test_an_agent_that_is_silent_for_too_long_loses_its_turn() -> None:
    dog = running()
    late = NOW + AGENTS.silence_timeout_seconds + 1
    error, after = dog.overdue(SilenceCheck(turn=1), given(now=late))
    assert isinstance(error, AppendEvent)
    assert (error.type, error.data["turn"]) == ("error", 1)
    assert "agents.silence_timeout_seconds" in error.data["message"]
    assert after == AfterCommit(EndRunningTurn(1))
    assert dog.given_up == error.data["message"]


@pytest.mark.parametrize(
    "excuse",
    [
        {"attached": False},
        {"record": {"agent_ready": False}},
        {"waits": True},
        {"served": True},
    ],
    ids=["away", "not ready", "waits for others", "served by us"],
)
def test_silence_with_a_reason_does_not_count(excuse: dict[str, Any]) -> None:
    dog = running()
    late = NOW + AGENTS.silence_timeout_seconds + 1
    effects = dog.overdue(SilenceCheck(turn=1), given(now=late, **excuse))
    assert effects == (StartTimer(AGENTS.silence_timeout_seconds, SilenceCheck(turn=1)),)


def test_a_check_of_a_turn_that_is_over_does_nothing() -> None:
    dog = running()
    assert dog.overdue(SilenceCheck(turn=1), given(turn=2, now=NOW + 1e6)) == ()
    dog.turn_ended()
    assert dog.overdue(SilenceCheck(turn=1), given(now=NOW + 1e6)) == ()


def test_a_limit_of_a_turn_names_itself_in_the_error() -> None:
    own = {"limits": Limits(max_turn_seconds=60.0, max_turn_steps=3)}
    dog = running()
    (error, _) = dog.overdue(TurnOverdue(turn=1), given(record=own))
    assert isinstance(error, AppendEvent)
    assert (error.data["kind"], error.data["limit"]) == ("limit", "max_turn_seconds")
    dog = running()
    assert dog.stepped(3, given(record=own)) == ()
    (error, _) = dog.stepped(4, given(record=own))
    assert isinstance(error, AppendEvent)
    assert error.data["limit"] == "max_turn_steps"


def test_a_model_that_fails_too_often_loses_the_turn() -> None:
    dog = running()
    retry = {"type": "retry", "attempt": AGENTS.max_retries, "message": "overloaded"}
    assert dog.heard("system", retry, given()) == ()
    (wait,) = dog.waits(given(), busy=False)
    assert wait.detail == f"it has failed {AGENTS.max_retries} times: overloaded"
    (error, _) = dog.heard("system", retry | {"attempt": AGENTS.max_retries + 1}, given())
    assert isinstance(error, AppendEvent)
    assert "agents.max_retries" in error.data["message"]


# ---------------------------------------------------------------- interrupts


def test_an_interrupt_takes_the_prompt_back_first_and_then_asks_the_agent() -> None:
    dog = running()
    assert dog.interrupt(1) == (AfterCommit(EndRunningTurn(1)),)
    assert dog.end_running(1, given()) == (WithdrawTurn(1),)
    assert dog.end_running(1, given()) == (), "once"
    assert dog.overdue(PromptWithdrawn(turn=1, withdrawn=False), given()) == (
        InterruptAgent(1),
        StartTimer(INTERRUPT_LIMIT, InterruptOverdue(turn=1)),
    )
    (wait,) = dog.waits(given(), busy=False)
    assert (wait.kind, wait.since, wait.until) == ("interrupt", WALL, WALL + INTERRUPT_LIMIT)


def test_a_prompt_that_was_taken_back_ends_its_turn() -> None:
    dog = running()
    dog.interrupt(1)
    dog.end_running(1, given())
    effects = dog.overdue(PromptWithdrawn(turn=1, withdrawn=True), given())
    assert effects == (EndUndeliveredTurn(),)


@pytest.mark.parametrize("away", [{"attached": False}, {"reachable": False}])
def test_an_interrupt_of_an_agent_that_is_away_is_due_when_it_is_back(away: Any) -> None:
    dog = running()
    dog.interrupt(1)
    assert dog.end_running(1, given(**away)) == ()
    assert WithdrawTurn(1) in dog.attached(given(), again=False)


def test_an_agent_that_goes_away_while_its_prompt_is_taken_back_is_asked_again() -> None:
    dog = running()
    dog.interrupt(1)
    dog.end_running(1, given())
    gone = given(attached=False)
    assert dog.overdue(PromptWithdrawn(turn=1, withdrawn=False), gone) == ()
    assert WithdrawTurn(1) in dog.attached(given(), again=False)


def test_an_agent_that_does_not_heed_an_interrupt_is_ended() -> None:
    dog = running()
    error, end = dog.overdue(InterruptOverdue(turn=1), given())
    assert isinstance(error, AppendEvent)
    assert "did not heed an interrupt" in error.data["message"]
    assert end == EndAgentProcess()
    assert dog.overdue(InterruptOverdue(turn=1), given(turn=None)) == ()
    assert dog.overdue(InterruptOverdue(turn=1), given(reachable=False)) == ()


def test_the_first_reason_to_give_up_a_turn_counts() -> None:
    dog = running()
    assert dog.give_up("one", given())
    assert dog.give_up("two", given()) == ()
    assert dog.given_up == "one"
    dog.turn_ended()
    assert dog.given_up is None
    assert dog.give_up("three", given(turn=None)) == ()


# ---------------------------------------------------------------- reasons to wait


def test_an_attached_agent_that_is_not_ready_is_waited_for_until_its_deadline() -> None:
    dog = watchdog()
    fresh = given(record={"agent_ready": False}, turn=None)
    dog.attached(fresh, again=False)
    (wait,) = dog.waits(fresh, busy=False)
    assert (wait.kind, wait.since) == ("agent", WALL)
    assert wait.until == WALL + AGENTS.start_timeout_seconds


def test_a_session_without_a_turn_or_that_waits_for_others_does_not_wait_for_the_model() -> None:
    dog = running()
    assert list(dog.waits(given(turn=None), busy=False)) == []
    assert list(dog.waits(given(), busy=True)) == []
    (wait,) = dog.waits(given(), busy=False)
    assert (wait.kind, wait.since) == ("model", WALL)


def test_another_message_is_no_deadline() -> None:
    with pytest.raises(TypeError):
        watchdog().overdue(msgspec.structs.replace(given().record), given())  # pyright: ignore
