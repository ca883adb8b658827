"""The life of a session as a state machine."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.actors.session import lifecycle
from oubliette.actors.session.lifecycle import Step
from oubliette.errors import Conflict
from oubliette.records import TERMINAL, Session, SessionStatus

STATUSES = get_args(SessionStatus)
STEPS = get_args(Step)


def session(status: str, ended_by: str | None = None) -> Session:
    return Session(
        id="gogol_x", project_id="proj_x", workspace_id="w", principal="p", agent="scripted",
        status=status, created_at=0.0, updated_at=0.0, exploration_id="e", ended_by=ended_by,
    )  # fmt: skip


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_whatever_happens_a_session_is_in_a_known_status_and_rests_until_it_is_resumed(
    steps: list[Step],
) -> None:
    status: SessionStatus = "created"
    for step in steps:
        before = status
        if not lifecycle.allowed(status, step):
            with pytest.raises(Conflict):
                lifecycle.after(status, step)
            continue
        status = lifecycle.after(status, step)
        assert status in STATUSES
        # A rest is left by a resume alone, and a resume is for the resting alone.
        assert (before in TERMINAL) == (step == "resumed")
        if step == "resumed":
            assert status == "created"


@given(st.sampled_from(STATUSES))
def test_a_live_session_can_always_be_ended_and_always_fail(status: SessionStatus) -> None:
    if status in TERMINAL:
        assert not lifecycle.allowed(status, "ended")
        return
    assert lifecycle.after(status, "ended") == "completed"
    assert lifecycle.after(status, "agent_lost") == "failed"


@given(st.lists(st.sampled_from(["turn_started", "turn_ended"]), max_size=20))
def test_a_turn_ends_only_where_one_runs(steps: list[Step]) -> None:
    status: SessionStatus = "idle"
    for step in steps:
        if lifecycle.allowed(status, step):
            status = lifecycle.after(status, step)
        else:
            assert (status, step) == ("idle", "turn_ended")
    assert status in {"idle", "running"}


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_what_rested_by_itself_may_be_resumed_what_was_ended_may_not(status: str) -> None:
    assert lifecycle.resumable(session(status))
    assert not lifecycle.resumable(session(status, ended_by="session_end"))
    assert not lifecycle.live(session(status))


@pytest.mark.parametrize("status", sorted(set(STATUSES) - TERMINAL))
def test_what_lives_is_not_resumed(status: str) -> None:
    assert lifecycle.live(session(status))
    assert not lifecycle.resumable(session(status))


@pytest.mark.parametrize(
    ("count", "told"), [(1, "1 session lives"), (2, "2 sessions live"), (0, "0 sessions live")]
)
def test_how_many_live_is_a_sentence(count: int, told: str) -> None:
    assert lifecycle.living(count) == told
