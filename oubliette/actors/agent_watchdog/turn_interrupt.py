"""The interrupt of a running turn, from its request to the end of the turn, without I/O.

The prompt is withdrawn if the agent does not have it yet; else the agent is asked to stop, and is
ended if it does not within `INTERRUPT_LIMIT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

INTERRUPT_LIMIT: Final = 10.0  # seconds for an agent to obey an interrupt


@dataclass(slots=True)
class TurnInterrupt:
    """State of the request to end the running turn before its time."""

    due: int | None = None
    """The turn to be interrupted once its agent is attached."""
    since: float | None = None
    """Wall second at which the agent was asked to stop."""
    given_up: str | None = None
    """Reason for which the running turn is to fail; None if it is only interrupted."""

    def turn_ended(self) -> None:
        self.due = self.since = self.given_up = None

    def give_up(self, running: int | None, reason: str) -> int | None:
        """Return the turn to interrupt, so that it fails for `reason`; the first reason counts."""
        if running is None or self.given_up is not None:
            return None
        self.given_up = reason
        return running

    def request(self, turn: int) -> None:
        """Note that a turn is to be interrupted as soon as its prompt is on its way."""
        self.due = turn

    def begins(self, turn: int, running: int | None, *, reachable: bool) -> bool:
        """Return whether the prompt of `turn` is to be withdrawn now; True only once.

        Args:
            turn: The turn to interrupt.
            running: The turn that runs by now.
            reachable: Whether the agent is attached; if not, it is due when it is.
        """
        if running != turn or self.due != turn or not reachable:
            return False
        self.due = None
        return True

    def follows(
        self, turn: int, running: int | None, *, withdrawn: bool, attached: bool, now: float
    ) -> Literal["end_turn", "ask_agent"] | None:
        """The step that follows the attempt to withdraw the prompt of a turn.

        Args:
            turn: The turn to interrupt.
            running: The turn that runs by now.
            withdrawn: Whether the agent will never get the prompt.
            attached: Whether the agent accepts frames; if not, all is tried again when it does.
            now: Wall second.
        """
        if running != turn:
            return None
        if withdrawn:
            return "end_turn"
        if not attached:
            self.due = turn
            return None
        self.since = now
        return "ask_agent"

    def overdue(self, turn: int, running: int | None) -> str | None:
        """Return why an agent that was asked to stop in `turn` is ended; None if it has stopped."""
        if running != turn:
            return None
        reason = f"the agent did not heed an interrupt for {INTERRUPT_LIMIT} s"
        self.given_up = self.given_up or reason
        return reason
