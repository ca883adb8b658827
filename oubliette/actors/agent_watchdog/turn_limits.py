"""Limits of a turn: its time and the steps of its model.

An agent in an endless loop is not silent, and its cost may be unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oubliette.actors.tree.limits import limit_sources
from oubliette.kit import Message

if TYPE_CHECKING:
    from oubliette.contract.limits import TreesConfig
    from oubliette.records import Limits


class TurnOverdue(Message):
    """Deadline at which the turn should have ended."""

    turn: int


@dataclass(frozen=True, slots=True)
class TurnLimitReached:
    """A limit that the running turn has reached, and because of which it is to fail."""

    limit: str
    reason: str


class TurnLimits:
    """The limits of one session's turns: the time, the steps of the model.

    The limits of its project, if set, take precedence over the configuration's.
    """

    __slots__ = ("_config", "_watched")

    def __init__(self, config: TreesConfig) -> None:
        self._config = config
        self._watched: int | None = None

    def turn_started(self, turn: int, since: float, now: float, own: Limits) -> float | None:
        """Return the seconds until `TurnOverdue` is due; None if a timer runs for the turn already.

        Args:
            turn: Its number.
            since: Wall second at which it began, perhaps under an earlier server.
            now: Wall second.
            own: The limits of the session's project.
        """
        if self._watched == turn:
            return None
        self._watched = turn
        limit = self._value("max_turn_seconds", own)
        return min(limit, max(since + limit - now, 0.0))  # the clock may be set back

    def overdue(
        self, message: TurnOverdue, running: int | None, own: Limits
    ) -> TurnLimitReached | None:
        """The limit that the turn `running` has reached by the timer of `message`."""
        if running != message.turn:
            return None
        return self._reached("max_turn_seconds", "the turn has taken {:g} seconds", own)

    def stepped(self, steps: int, own: Limits) -> TurnLimitReached | None:
        """The limit that a turn has reached with that many steps of its model, if any."""
        if steps <= self._value("max_turn_steps", own):
            return None
        return self._reached("max_turn_steps", "the turn has taken {:g} steps of its model", own)

    def _value(self, name: str, own: Limits) -> float:
        value = getattr(own, name)
        return getattr(self._config, name) if value is None else value

    def _reached(self, name: str, text: str, own: Limits) -> TurnLimitReached:
        source = limit_sources(own)[name]
        where = f"trees.{name}" if source == "configuration" else f"{name} of its project"
        taken = text.format(self._value(name, own))
        return TurnLimitReached(name, f"{taken}, as many as it may ({where})")
