"""Presence of a caller: a rule on times, without I/O.

A stream counts as present until `stream_grace` after it dropped; a poller until `poll_grace` after
its last poll. A sign of life counts as a poll, but the drop of a stream takes precedence over
earlier signs. In a cluster, what the nodes agree on counts as what happened here.
"""

from __future__ import annotations

import math


class PresenceByReach(dict[str | None, "CallerPresence"]):
    """Presence of one caller by keys that are bound to a project, and by those that are not (None).

    It is present as long as it is so by keys of any reach.
    """

    def __init__(self, stream_grace: float, poll_grace: float) -> None:
        super().__init__({None: CallerPresence(stream_grace, poll_grace)})
        self._grace = stream_grace, poll_grace

    def of(self, project_id: str | None) -> CallerPresence:
        """The presence by keys of this reach."""
        if project_id not in self:
            self[project_id] = CallerPresence(*self._grace)
        return self[project_id]

    @property
    def known(self) -> bool:
        """Whether it was ever present, as far as this server knows."""
        return any(each.known for each in self.values())

    @property
    def held(self) -> bool:
        return any(each.held for each in self.values())

    @property
    def reason(self) -> str:
        """Reason why it is absent, if it is: of where it was present last."""
        return max(self.values(), key=CallerPresence.until).reason

    def held_elsewhere(self, now: float) -> bool:
        """Whether a provider is open on another node."""
        return any(each.held_elsewhere(now) for each in self.values())

    def until(self) -> float:
        """The time at which it is absent, infinite while a provider is open here."""
        return max(each.until() for each in self.values())

    def present(self, now: float) -> bool:
        return now < self.until()


class CallerPresence:
    """Presence of one caller by keys of one reach. Times are monotonic, in seconds."""

    def __init__(self, stream_grace: float, poll_grace: float) -> None:
        self.stream_grace = stream_grace
        self.poll_grace = poll_grace
        self._until = -math.inf
        self._held: dict[str, bool] = {}
        """Open providers, and whether each is a stream."""
        self._elsewhere = -math.inf
        """Time until which a provider on another node counts as open."""
        self.reason = "it never connected"
        """Reason why it is absent, if it is."""

    @property
    def known(self) -> bool:
        """Whether it was ever present, as far as this server knows."""
        return self.held or max(self._until, self._elsewhere) > -math.inf

    @property
    def held(self) -> bool:
        return bool(self._held)

    def held_elsewhere(self, now: float) -> bool:
        """Whether a provider is open on another node."""
        return now < self._elsewhere

    def until(self) -> float:
        """The time at which it is absent, infinite while a provider is open here."""
        return math.inf if self._held else max(self._until, self._elsewhere)

    def present(self, now: float) -> bool:
        return now < self.until()

    def opened(self, listener: str, *, stream: bool) -> None:
        self._held[listener] = stream

    def superseded(self, listener: str) -> None:
        """Record that a newer listener replaced this one: no sign of absence."""
        self._held.pop(listener, None)

    def closed(self, listener: str, now: float, *, orderly: bool) -> None:
        """Record that a provider has ended; an `orderly` end gives it the time of a poller."""
        stream = self._held.pop(listener, None)
        if stream is None:
            return
        if stream and not orderly:
            self._until = now + self.stream_grace
            self.reason = "it disconnected"
        else:
            self._until = max(self._until, now + self.poll_grace)
            self.reason = "it stopped listening"

    def seen(self, now: float) -> None:
        """Record a sign of life."""
        if not self.present(now):
            self.reason = "it does not listen for events"
        self._until = max(self._until, now + self.poll_grace)

    def shared(self, now: float, until: float, reason: str, *, held: bool, later: bool) -> None:
        """Record what the nodes agree on, while no provider of this node is the newest.

        Args:
            now: Time at which it was read.
            until: Time at which the caller is absent.
            reason: Reason for that.
            held: Whether a provider is open on another node.
            later: Whether a provider was opened or has ended since this was read before: signs
                of life from before that do not count.
        """
        self._elsewhere = until if held else -math.inf
        if later:
            self._until = min(self._until, now if held else until)
        if not held and until > now:
            self._until = max(self._until, until)
        if not self.held and (held or until >= self._until):
            self.reason = reason

    def newest_here(self) -> None:
        """Record that the newest provider is one of this node."""
        self._elsewhere = -math.inf
