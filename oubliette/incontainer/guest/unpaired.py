"""Links that were accepted and have no partner yet."""

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
    """The link is not accepted; the text is for the peer."""


class UnpairedLink:
    """An accepted link that has no partner yet; its bytes stay in the kernel."""

    def __init__(
        self,
        loop: Loop,
        side: Side,
        lost: Callable[[UnpairedLink], None],
        patience: float | None = None,
    ) -> None:
        self.side = side
        self.announced = True  # its session, or that it is there for bare clients
        self._loop = loop
        self._lost = lost
        self._timer: LoopTimer | None = None
        if patience is not None:
            self._timer = loop.call_later(patience, self._expired)
        loop.watch(side.sock.fileno(), PEER_ENDED, self._ready)

    def _ready(self, mask: int) -> None:
        if mask & HANGUP:
            self.close()
        else:  # it has sent all it will send, and still waits for the answer
            self._loop.watch(self.side.sock.fileno(), CLOSED, self._ready)

    def _expired(self) -> None:
        self.close("no upstream")

    def take(self) -> Side:
        """Give the link to a pair."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.unwatch(self.side.sock.fileno())
        return self.side

    def close(self, reason: str | None = None) -> None:
        """Cut the link, telling its peer why."""
        sock = self.take().sock
        if reason is not None:
            try:
                sock.send(wire.error_line(reason))
            except OSError:
                pass  # the peer is gone too
        sock.close()
        self._lost(self)
