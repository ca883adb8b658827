"""How long a turn may take, and how many steps of its model: an end of its own.

An agent that goes on for ever is not silent, and what it costs may be unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.exploration.actor import limit_sources
from oubliette.kit import Message

if TYPE_CHECKING:
    from oubliette.actors.session.actor import SessionActor


class TurnOverdue(Message):
    """The turn should have ended by now."""

    turn: int


class TurnLimits:
    """Of one session's turns. Lives and dies with its actor."""

    def __init__(self, session: SessionActor) -> None:
        self._session = session
        self._watched: int | None = None

    def turn_started(self, turn: int, since: float) -> None:
        """Its time runs since that wall second, for a server that takes it over too."""
        if self._watched == turn:
            return
        self._watched = turn
        session = self._session
        left = since + self._value("max_turn_seconds") - session.clock.time()
        session.after(max(left, 0.0), TurnOverdue(turn=turn))

    def overdue(self, message: TurnOverdue) -> None:
        """Its time is over, if it still runs."""
        if self._session.turn == message.turn:
            self._reached("max_turn_seconds", "the turn has taken {:g} seconds")

    def stepped(self, steps: int) -> None:
        """So many steps of its model has the running turn taken, as far as its agent tells."""
        if steps > self._value("max_turn_steps"):
            self._reached("max_turn_steps", "the turn has taken {:g} steps of its model")

    def _value(self, name: str) -> float:
        own = getattr(self._session.writer.record.limits, name)
        return getattr(self._session.context.config.trees, name) if own is None else own

    def _reached(self, name: str, text: str) -> None:
        source = limit_sources(self._session.writer.record.limits)[name]
        where = f"trees.{name}" if source == "configuration" else f"{name} of its project"
        self._session.watchdog.give_up(
            f"{text.format(self._value(name))}, as many as it may ({where})",
            kind="limit",
            limit=name,
        )
