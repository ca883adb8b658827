"""OpenConnections, those of one HTTP server, and which of them makes room for a new one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

if TYPE_CHECKING:
    import asyncio

MINUTE: Final = 60.0

log = structlog.get_logger("oubliette.front")


class CountedConnection(Protocol):
    """A connection, as far as it concerns their number."""

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def unused(self) -> bool:
        """Whether it waits for its client."""
        ...


class OpenConnections:
    """The open connections of one server, at most `most`.

    At the limit a new connection is accepted all the same, so that no flood keeps others out: the
    oldest one that has shown no good key is closed for it. An eighth is kept for those, so that
    requests of others get as far as their key: where there are no more of them, one of the
    principal with most connections is closed, the oldest that is unused, else the oldest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._strangers: dict[CountedConnection, None] = {}
        """Connections without a good key, the oldest first."""
        self._known: dict[str, dict[CountedConnection, None]] = {}
        """Principal → its connections, the oldest first."""
        self._of: dict[CountedConnection, str] = {}
        self._causes: dict[str, tuple[float, int]] = {}
        """Logged cause → when it was logged, and how often it came since."""

    def add(self, connection: CountedConnection) -> None:
        """Add a new connection, in the place of another one at the limit."""
        if len(self._strangers) + len(self._of) >= self._most:
            in_the_way = self._in_the_way()
            if count := self.due("too many connections"):
                log.warning("too many connections", most=self._most, count=count)
            self.remove(in_the_way)
            in_the_way.transport.abort()
        self._strangers[connection] = None

    @property
    def share(self) -> int:
        """Number of connections to open ports that one owner may have; all have twice as many."""
        return self._most // 4

    def admitted(self, connection: CountedConnection, principal: str) -> None:
        """Record that a connection has shown a good key of this principal; none that is over."""
        if self._of.get(connection) == principal:
            return
        if connection not in self._strangers and connection not in self._of:
            return  # it was lost or closed while its key was looked at
        self.remove(connection)
        self._of[connection] = principal
        self._known.setdefault(principal, {})[connection] = None

    def is_known(self, connection: CountedConnection) -> bool:
        """Whether a connection has shown a good key."""
        return connection in self._of

    def remove(self, connection: CountedConnection) -> None:
        """Forget a connection; no effect if it is not among them."""
        self._strangers.pop(connection, None)
        principal = self._of.pop(connection, None)
        if principal is not None:
            own = self._known[principal]
            del own[connection]
            if not own:
                del self._known[principal]

    def due(self, cause: str) -> int:
        """Count an event that clients cause; return how many to log now: once a minute, else 0."""
        now = time.monotonic()
        logged, count = self._causes.get(cause, (-MINUTE, 0))
        if now - logged < MINUTE:
            self._causes[cause] = (logged, count + 1)
            return 0
        self._causes[cause] = (now, 0)
        return count + 1

    def _in_the_way(self) -> CountedConnection:
        largest = max(self._known.values(), key=len, default=None)
        if largest is None or len(self._strangers) > self._most // 8:
            return next(iter(self._strangers))
        return next((each for each in largest if each.unused), next(iter(largest)))
