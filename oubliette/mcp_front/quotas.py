"""Quotas of principals: calls in flight, GET streams and listeners.

In a cluster all are counted over all nodes: listeners by claims, which are exact also while the
database is away, and calls and streams by shares, which cost nothing for most of them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oubliette import ids
from oubliette.actors.shares import ShareLimit
from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from oubliette.actors.claims import Claims
    from oubliette.actors.shares import Shares
    from oubliette.config.schema import CallersConfig


class SlotCounter:
    """Slots of principals that are in use at once.

    Args:
        kind: What they are for; begins the scope of a principal's shares.
        most: Maximum of a principal.
        shares: Counts those of all nodes; None: there are no others.
    """

    __slots__ = ("_kind", "_limit", "_shares", "used")

    def __init__(self, kind: str, most: int, shares: Shares | None) -> None:
        self._kind = kind
        self._limit = ShareLimit(most)
        self._shares = shares
        self.used: Counter[str] = Counter()
        """Slots in use here, by principal."""

    async def take(self, principal: str) -> bool:
        """Take a slot, if there is one; return whether there was."""
        if self._shares is not None:
            taken = await self._shares.take(self._scope(principal), self._limit) is None
        else:
            taken = self.used[principal] < self._limit.most
        if taken:
            self.used[principal] += 1
        return taken

    def take_anyway(self, principal: str) -> None:
        """Take a slot, whether there is one or not."""
        if self._shares is not None:
            self._shares.take_anyway(self._scope(principal), self._limit)
        self.used[principal] += 1

    def give_back(self, principal: str) -> None:
        decrement(self.used, principal)
        if self._shares is not None:
            self._shares.give_back(self._scope(principal))

    def _scope(self, principal: str) -> str:
        return f"{self._kind}:{principal}"


class CallSlot:
    """One call's slot among the calls in flight of its principal, which has been taken.

    It is released when the answer is sent, although cleanup may follow: the client may use it for
    its next call from that moment on.
    """

    __slots__ = ("_ended", "_held", "_principal", "_slots")

    def __init__(self, slots: SlotCounter, principal: str) -> None:
        self._slots = slots
        self._principal = principal
        self._ended = False
        self._held = True

    def leave(self) -> None:
        """Release the slot for now: the call has become a listener, which is counted separately."""
        if self._held:
            self._held = False
            self._slots.give_back(self._principal)

    def back(self) -> None:
        """Take the slot again until the answer is sent; no effect after `end`."""
        if not self._held and not self._ended:
            self._held = True
            self._slots.take_anyway(self._principal)

    def end(self) -> None:
        """Release the slot finally."""
        self._ended = True
        self.leave()


class ListenerSlot:
    """One listener's slot among those of its principal."""

    __slots__ = ("_claimed", "_holder", "_principal", "_quotas")

    def __init__(self, quotas: Quotas, principal: str) -> None:
        self._quotas = quotas
        self._principal = principal
        self._holder = ids.new_uuid()
        self._claimed = False
        quotas.listeners[principal] += 1

    async def claim(self) -> None:
        """Claim the slot among those of all nodes; no effect on a server that is alone.

        Raises:
            LimitExceeded: the principal has the maximum open on all nodes together.
            StorageUnavailable: the nodes' database does not answer.
        """
        claims = self._quotas.claims
        if claims is None:
            return
        most, scope = self._quotas.max_listeners, f"listeners:{self._principal}"
        self._claimed = await claims.claim(self._holder, scope, most)
        if not self._claimed:
            raise self._quotas.too_many_listeners()

    def end(self) -> None:
        """Release the slot; once."""
        decrement(self._quotas.listeners, self._principal)
        if self._claimed and self._quotas.claims is not None:
            self._quotas.claims.release(self._holder)


class Quotas:
    """Counters of calls in flight, GET streams and listeners, by principal.

    Args:
        config: Their limits.
        claims: Counts the listeners of all nodes; None: there are no others.
        shares: Counts their calls and streams.
    """

    def __init__(
        self, config: CallersConfig, claims: Claims | None = None, shares: Shares | None = None
    ) -> None:
        self.claims = claims
        self.max_listeners = config.max_listeners
        self._max_calls = config.max_calls_in_flight
        self._calls = SlotCounter("in_flight", self._max_calls, shares)
        self._streams = SlotCounter("streams", self._max_calls, shares)
        self.listeners: Counter[str] = Counter()

    @property
    def calls(self) -> Counter[str]:
        """Calls in flight here, by principal."""
        return self._calls.used

    @property
    def streams(self) -> Counter[str]:
        """Open GET streams here, by principal; the limit is that of calls in flight."""
        return self._streams.used

    async def take_call(self, principal: str) -> CallSlot:
        """Count one more call in flight, until `CallSlot.end`.

        Raises:
            LimitExceeded: the principal has the maximum in flight.
        """
        if not await self._calls.take(principal):
            raise LimitExceeded(
                f"{self._max_calls} calls are in flight already"
                f" (callers.max_calls_in_flight = {self._max_calls})",
                hint="wait for one of them to end",
            )
        return CallSlot(self._calls, principal)

    async def take_stream(self, principal: str) -> None:
        """Count one more GET stream, until `end_stream`.

        Raises:
            LimitExceeded: the principal has the maximum open.
        """
        if not await self._streams.take(principal):
            raise LimitExceeded(
                f"{self._max_calls} event streams are open already"
                f" (callers.max_calls_in_flight = {self._max_calls})",
                hint="close one of them",
            )

    def end_stream(self, principal: str) -> None:
        self._streams.give_back(principal)

    def take_listener(self, principal: str) -> ListenerSlot:
        """Count one more listener, until `ListenerSlot.end`; then claim its slot.

        Raises:
            LimitExceeded: the principal has the maximum open here.
        """
        if self.listeners[principal] >= self.max_listeners:
            raise self.too_many_listeners()
        return ListenerSlot(self, principal)

    def too_many_listeners(self) -> LimitExceeded:
        return LimitExceeded(
            f"{self.max_listeners} listeners are open already"
            f" (callers.max_listeners = {self.max_listeners})",
            hint="end one of them, or listen with one caller_id for all",
        )


def decrement(counter: Counter[str], principal: str) -> None:
    """Decrement the counter of a principal, which is forgotten at 0."""
    counter[principal] -= 1
    if counter[principal] <= 0:
        del counter[principal]
