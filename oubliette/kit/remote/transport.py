"""Transport: the port through which one node hands frames to another and learns of its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol

from oubliette.kit.errors import ActorDead

Receive = Callable[[str, list[bytes]], Awaitable[list[bytes]]]
"""Take the frames of one batch from the peer of this name, in their order; return the reply."""

Gone = Callable[[str, str], None]
"""Learn that the peer of this name is dead, and why."""


class PeerGone(ActorDead):
    """The node cannot be reached: it is unknown, has ended, or lost its connection."""

    code: ClassVar[str] = "peer_gone"

    def __init__(self, node: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"node {node} cannot be reached: {reason}", hint=hint)
        self.node = node
        self.reason = reason


class Transport(Protocol):
    """Carrier of frames between the nodes of a cluster; knows nothing of what is in them.

    It delivers each batch at most once, whole, and the batches of one sender in the order in which
    `send` was called. A batch whose `send` raised may or may not have arrived. All calls, in both
    directions, are made on the loop of the System.

    With the acceptance of a batch goes its reply: frames, often none, that spare the peer a batch
    of its own. A reply arrives whole or `send` raises. It may arrive before or after a batch that
    the same peer sends at that time: who needs an order between the two numbers them.
    """

    @property
    def node(self) -> str:
        """Name of this node; fixed from the start."""
        ...

    def start(self, receive: Receive, gone: Gone) -> None:
        """Deliver from now on; called once, before the first `send`.

        `receive(node, frames)` is awaited before the next batch of that peer is delivered; that is
        how a busy node slows its peers. It returns the reply, and never raises.

        `gone(node, reason)` is called when a peer is dead, also before anything was sent to it;
        more than once does no harm. It need not come for every death: asks end at their deadline in
        any case.
        """
        ...

    def send(self, node: str, frames: list[bytes]) -> Awaitable[list[bytes]]:
        """Hand a batch to a peer; complete when the peer has accepted it, with its reply.

        Per peer the caller awaits one call before the next. A peer that does not answer is not
        waited for for ever: the transport has a deadline of its own and raises then.

        Raises:
            PeerGone: the peer is unknown, has ended or cannot be reached.
        """
        ...
