"""Statuses of a session, and states of its turns, as pure state machines.

created → running ⇄ idle → completed | failed | timed_out

A session becomes idle at once if its prompts are withdrawn before its agent is ready.
A finished session may be resumed by a new message, unless `session_end` ended it. Nothing here does
I/O: the SessionActor asks which steps are allowed, and performs them.
"""

from __future__ import annotations

from typing import Final, Literal

from oubliette.errors import Conflict
from oubliette.records import TERMINAL, Session, SessionStatus, TurnOutcome, TurnState

Step = Literal[
    "turn_started",  # a prompt was handed to the agent
    "ready",  # the agent can be prompted, and no turn waits
    "turn_ended",  # the agent ended its turn, with any outcome
    "agent_lost",  # the process, its container or its link is permanently gone
    "start_failed",  # the agent was never ready
    "idled_out",  # no activity for the idle timeout
    "time_ran_out",  # the wall time of its tree
    "ended",  # it was ended by session_end or a stop
    "resumed",  # a message resumed it
]

SESSION_STEPS: Final[dict[tuple[SessionStatus, Step], SessionStatus]] = {
    ("created", "turn_started"): "running",
    ("created", "ready"): "idle",
    ("idle", "turn_started"): "running",
    ("running", "turn_started"): "running",
    ("running", "turn_ended"): "idle",
    ("created", "start_failed"): "failed",
    ("running", "start_failed"): "failed",
    ("created", "agent_lost"): "failed",
    ("running", "agent_lost"): "failed",
    ("idle", "agent_lost"): "failed",
    ("idle", "idled_out"): "timed_out",
    ("created", "idled_out"): "timed_out",
    ("created", "time_ran_out"): "timed_out",
    ("running", "time_ran_out"): "timed_out",
    ("idle", "time_ran_out"): "timed_out",
    ("created", "ended"): "completed",
    ("running", "ended"): "completed",
    ("idle", "ended"): "completed",
    ("completed", "resumed"): "created",
    ("failed", "resumed"): "created",
    ("timed_out", "resumed"): "created",
}

TurnStep = Literal["begun", TurnOutcome]
"""`begun`: its prompt is written to the agent. An outcome: it ended with it."""

TURN_STEPS: Final[dict[tuple[TurnState, TurnStep], TurnState]] = {
    ("queued", "begun"): "running",
    ("queued", "interrupted"): "done",
    ("queued", "failed"): "done",  # its session ended first
    ("running", "completed"): "done",
    ("running", "interrupted"): "done",
    ("running", "failed"): "done",
}


def allowed(status: SessionStatus, step: Step) -> bool:
    """Whether `step` may happen to a session in `status`."""
    return (status, step) in SESSION_STEPS


def after(status: SessionStatus, step: Step) -> SessionStatus:
    """The status that `step` leads to.

    Raises:
        Conflict: the step cannot happen in this status.
    """
    following = SESSION_STEPS.get((status, step))
    if following is None:
        raise Conflict(f"a session that is {status} cannot take the step {step!r}")
    return following


def turn_after(state: TurnState, step: TurnStep) -> TurnState:
    """The state of a turn that `step` leads to.

    Raises:
        Conflict: the step cannot happen in this state.
    """
    following = TURN_STEPS.get((state, step))
    if following is None:
        raise Conflict(f"a turn that is {state} cannot take the step {step!r}")
    return following


def may_follow(status: SessionStatus, following: SessionStatus) -> bool:
    return any(
        before == status and after == following for (before, _), after in SESSION_STEPS.items()
    )


def live(session: Session) -> bool:
    """Return whether an agent belongs to it, or is about to."""
    return session.status not in TERMINAL


def resumable(session: Session) -> bool:
    """Whether a new message may resume it."""
    return not live(session) and session.ended_by is None


def living(count: int, what: str = "session") -> str:
    """The number of live sessions in words: "1 session lives", "2 sessions live"."""
    return f"1 {what} lives" if count == 1 else f"{count} {what}s live"
