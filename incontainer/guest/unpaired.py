"""Accepted links that have no partner yet."""

from __future__ import annotations

from .. import wire
from ..io.event_loop import CLOSED, HANGUP, PEER_ENDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..io.event_loop import Loop, LoopTimer
    from .socket_pair import Side

DOWNSTREAM_TIMEOUT = 600.0  # seconds a downstream waits for its upstream


class LinkRefused(Exception):
    """The link is not accepted; the text is sent to the peer."""


class UnpairedLink:
    """Accepted link without a partner; its bytes stay in the kernel."""

    def __init__(
        self,
        loop: Loop,
        side: Side,
        on_closed: Callable[[UnpairedLink], None],
        timeout: float | None = None,
    ) -> None:
        self.side = side
        self.announced = True  # its session, or that it serves bare clients
        self._loop = loop
        self._on_closed = on_closed
        self._timer: LoopTimer | None = None
        if timeout is not None:
            self._timer = loop.call_later(timeout, self._expired)
        loop.watch(side.sock.fileno(), PEER_ENDED, self._ready)

    def _ready(self, mask: int) -> None:
        if mask & HANGUP:
            self.close()
        else:  # it has sent everything, and still waits for the answer
            self._loop.watch(self.side.sock.fileno(), CLOSED, self._ready)

    def _expired(self) -> None:
        self.close("no upstream")

    def take(self) -> Side:
        """Stop watching the link and return its socket, for a pair."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.unwatch(self.side.sock.fileno())
        return self.side

    def close(self, reason: str | None = None) -> None:
        """Close the link, with an error line if there is a reason."""
        sock = self.take().sock
        if reason is not None:
            try:
                sock.send(wire.error_line(reason))
            except OSError:
                pass  # the peer is gone too
        sock.close()
        self._on_closed(self)
