"""States of a container: each transition that there is, and none besides."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.actors.container.lifecycle import (
    TRANSITIONS,
    Lifecycle,
    Occurrence,
    State,
    UnexpectedOccurrenceError,
)

STATES = get_args(State)
OCCURRENCES = get_args(Occurrence)


def life_in(state: State) -> Lifecycle:
    life = Lifecycle()
    life.state = state
    return life


def test_a_container_that_is_wanted_used_and_stopped_goes_through_every_stage() -> None:
    life = Lifecycle()
    seen = [life.on(each) for each in ("wanted", "started", "relayed", "stop", "stopped")]
    assert seen == ["starting", "relay", "up", "stopping", "down"]


def test_a_container_of_an_earlier_server_is_up_at_once_once_the_engine_tells() -> None:
    life = Lifecycle()
    assert [life.on(each) for each in ("engine_away", "engine_away", "adopted")] == [
        "adopting",
        "adopting",
        "up",
    ]


def test_a_container_that_is_lost_while_it_is_stopped_is_still_to_be_removed() -> None:
    life = life_in("stopping")
    assert life.on("lost") == "stopping"
    assert life.on("stopped") == "down"


def test_a_stop_that_fails_leaves_the_container_in_use() -> None:
    assert life_in("stopping").on("stop_failed") == "up"


@pytest.mark.parametrize("state", STATES)
def test_it_runs_between_its_start_and_its_stop(state: State) -> None:
    assert life_in(state).runs == (state in {"relay", "up"})


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("occurrence", OCCURRENCES)
def test_what_the_table_does_not_have_is_refused_and_changes_nothing(
    state: State, occurrence: Occurrence
) -> None:
    life = life_in(state)
    if (state, occurrence) in TRANSITIONS:
        assert life.on(occurrence) == TRANSITIONS[state, occurrence]
    else:
        with pytest.raises(UnexpectedOccurrenceError, match=f"{occurrence} in the state {state}"):
            life.on(occurrence)
        assert life.state == state


def test_every_state_can_be_reached_and_left_and_every_occurrence_is_used() -> None:
    assert {new for _, new in TRANSITIONS.items()} | {"down"} == set(STATES)
    assert {state for (state, _), new in TRANSITIONS.items() if new != state} == set(STATES)
    assert {occurrence for _, occurrence in TRANSITIONS} == set(OCCURRENCES)


@given(st.lists(st.sampled_from(OCCURRENCES), max_size=40))
def test_whatever_happens_there_is_a_way_back_to_down(occurrences: list[Occurrence]) -> None:
    life = Lifecycle()
    for each in occurrences:
        if (life.state, each) in TRANSITIONS:
            life.on(each)
    for each in {
        "down": (),
        "adopting": ("examined",),
        "starting": ("start_failed",),
        "relay": ("lost",),
        "up": ("lost",),
        "stopping": ("stopped",),
    }[life.state]:
        life.on(each)
    assert life.state == "down"
