"""How a turn is ended before its time."""

from __future__ import annotations

import pytest

from oubliette.actors.agent_watchdog.turn_interrupt import TurnInterrupt

NOW = 1000.0


def requested(turn: int = 4) -> TurnInterrupt:
    interrupt = TurnInterrupt()
    interrupt.request(turn)
    return interrupt


def test_the_prompt_is_withdrawn_once() -> None:
    interrupt = requested()
    assert interrupt.begins(4, 4, reachable=True)
    assert not interrupt.begins(4, 4, reachable=True)


def test_an_interrupt_waits_for_the_agent_to_be_attached() -> None:
    interrupt = requested()
    assert not interrupt.begins(4, 4, reachable=False)
    assert interrupt.due == 4
    assert interrupt.begins(4, 4, reachable=True)


@pytest.mark.parametrize("running", [None, 5])
def test_a_turn_that_has_ended_is_not_interrupted(running: int | None) -> None:
    interrupt = requested()
    assert not interrupt.begins(4, running, reachable=True)
    for withdrawn in (True, False):
        assert interrupt.follows(4, running, withdrawn=withdrawn, attached=True, now=NOW) is None
    assert interrupt.overdue(4, running) is None
    assert interrupt.given_up is None


def test_the_next_turn_has_nothing_of_the_interrupt_of_the_last() -> None:
    interrupt = requested()
    interrupt.give_up(4, "too slow")
    interrupt.follows(4, 4, withdrawn=False, attached=True, now=NOW)
    interrupt.turn_ended()
    assert interrupt == TurnInterrupt()
    assert not interrupt.begins(4, 5, reachable=True)


def test_a_turn_whose_prompt_was_withdrawn_ends_without_its_agent() -> None:
    interrupt = requested()
    assert interrupt.follows(4, 4, withdrawn=True, attached=False, now=NOW) == "end_turn"
    assert interrupt.since is None


def test_an_agent_that_has_the_prompt_is_asked_to_stop() -> None:
    interrupt = requested()
    assert interrupt.follows(4, 4, withdrawn=False, attached=True, now=NOW) == "ask_agent"
    assert interrupt.since == NOW


def test_an_agent_that_was_lost_meanwhile_is_interrupted_when_it_is_attached() -> None:
    interrupt = requested()
    assert interrupt.begins(4, 4, reachable=True)
    assert interrupt.follows(4, 4, withdrawn=False, attached=False, now=NOW) is None
    assert interrupt.since is None
    assert interrupt.begins(4, 4, reachable=True)


def test_the_first_reason_for_which_a_turn_is_given_up_counts() -> None:
    interrupt = TurnInterrupt()
    assert interrupt.give_up(4, "too slow") == 4
    assert interrupt.give_up(4, "too dear") is None
    assert interrupt.given_up == "too slow"


def test_without_a_turn_nothing_is_given_up() -> None:
    interrupt = TurnInterrupt()
    assert interrupt.give_up(None, "too slow") is None
    assert interrupt.given_up is None


def test_an_agent_that_does_not_stop_fails_the_turn() -> None:
    interrupt = requested()
    reason = "the agent did not heed an interrupt for 10.0 s"
    assert interrupt.overdue(4, 4) == reason
    assert interrupt.given_up == reason


def test_an_agent_that_does_not_stop_is_not_the_reason_for_which_its_turn_was_given_up() -> None:
    interrupt = TurnInterrupt()
    interrupt.give_up(4, "too slow")
    assert interrupt.overdue(4, 4) is not None
    assert interrupt.given_up == "too slow"
