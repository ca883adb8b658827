"""Quotas of principals: calls in flight, GET streams and listeners."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from oubliette.config.schema import CallersConfig


class CallSlot:
    """One call's slot among the calls in flight of its principal.

    It is released when the answer is sent, although cleanup may follow: the client may use it for
    its next call from that moment on.
    """

    __slots__ = ("_counter", "_ended", "_held", "_principal")

    def __init__(self, counter: Counter[str], principal: str) -> None:
        self._counter = counter
        self._principal = principal
        self._ended = False
        self._held = True
        counter[principal] += 1

    def leave(self) -> None:
        """Release the slot for now: the call has become a listener, which is counted separately."""
        if self._held:
            self._held = False
            Quotas.give_back(self._counter, self._principal)

    def back(self) -> None:
        """Take the slot again until the answer is sent; no effect after `end`."""
        if not self._held and not self._ended:
            self._held = True
            self._counter[self._principal] += 1

    def end(self) -> None:
        """Release the slot finally."""
        self._ended = True
        self.leave()


class Quotas:
    """Counters of calls in flight, GET streams and listeners, by principal."""

    def __init__(self, config: CallersConfig) -> None:
        self._max_calls = config.max_calls_in_flight
        self._max_listeners = config.max_listeners
        self.calls: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        """Open GET streams; the limit is that of calls in flight."""
        self.listeners: Counter[str] = Counter()

    def take_call(self, principal: str) -> CallSlot:
        """Count one more call in flight, until `CallSlot.end`.

        Raises:
            LimitExceeded: the principal has the maximum in flight.
        """
        if self.calls[principal] >= self._max_calls:
            raise LimitExceeded(
                f"{self._max_calls} calls are in flight already"
                f" (callers.max_calls_in_flight = {self._max_calls})",
                hint="wait for one of them to end",
            )
        return CallSlot(self.calls, principal)

    def take_stream(self, principal: str) -> None:
        """Count one more GET stream.

        Raises:
            LimitExceeded: the principal has the maximum open.
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
            LimitExceeded: the principal has the maximum open.
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
        """Decrement the counter of a principal."""
        counter[principal] -= 1
        if counter[principal] <= 0:
            del counter[principal]
