"""Deadlines of an agent that its session is reminded of."""

from __future__ import annotations

from typing import Final

from oubliette.actors.agent_watchdog.silence import SilenceCheck
from oubliette.actors.agent_watchdog.turn_limits import TurnOverdue
from oubliette.kit import Message


class StartOverdue(Message):
    """Deadline at which the agent should have been ready."""

    process_id: str


class ContactOverdue(Message):
    """Deadline at which the agent should have started our MCP server."""

    process_id: str


class InterruptOverdue(Message):
    """Deadline at which the agent should have ended this turn."""

    turn: int


class PromptWithdrawn(Message):
    """Whether the prompt of this turn was taken back before the agent got it."""

    turn: int
    withdrawn: bool


DEADLINES: Final = (
    StartOverdue,
    ContactOverdue,
    SilenceCheck,
    TurnOverdue,
    InterruptOverdue,
    PromptWithdrawn,
)
"""Messages that a session passes on to its `AgentWatchdog`."""
