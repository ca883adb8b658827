"""How much one principal may hold open at once (DESIGN 4.3)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from oubliette.config import CallersConfig


class Quotas:
    """Counts calls in flight and listeners, by principal."""

    def __init__(self, config: CallersConfig) -> None:
        self._max_calls = config.max_calls_in_flight
        self._max_listeners = config.max_listeners
        self.calls: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        """Open GET streams; as many as calls in flight are allowed."""
        self.listeners: Counter[str] = Counter()

    def take_call(self, principal: str) -> None:
        """Count one more call in flight.

        Raises:
            LimitExceeded: there are as many as are allowed.
        """
        if self.calls[principal] >= self._max_calls:
            raise LimitExceeded(
                f"{self._max_calls} calls are in flight already"
                f" (callers.max_calls_in_flight = {self._max_calls})",
                hint="wait for one of them to end",
            )
        self.calls[principal] += 1

    def take_stream(self, principal: str) -> None:
        """Count one more GET stream.

        Raises:
            LimitExceeded: there are as many as are allowed.
        """
        if self.streams[principal] >= self._max_calls:
            raise LimitExceeded(
                f"{self._max_calls} event streams are open already"
                f" (callers.max_calls_in_flight = {self._max_calls})",
                hint="close one of them",
            )
        self.streams[principal] += 1

    def take_listener(self, principal: str) -> None:
        """Count one more listener.

        Raises:
            LimitExceeded: there are as many as are allowed.
        """
        if self.listeners[principal] >= self._max_listeners:
            raise LimitExceeded(
                f"{self._max_listeners} listeners are open already"
                f" (callers.max_listeners = {self._max_listeners})",
                hint="end one of them, or listen with one caller_id for all",
            )
        self.listeners[principal] += 1

    @staticmethod
    def give_back(counter: Counter[str], principal: str) -> None:
        """Count one less."""
        counter[principal] -= 1
        if counter[principal] <= 0:
            del counter[principal]
