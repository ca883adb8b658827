"""RayTransport: the kit's Transport on calls between Ray actors.

A connection to a peer has one direction. It is opened by a greeting, which gives both sides the
other's epoch and gives the connection a number; each batch carries them, so a node that was started
again, and a batch that was given up and arrives late, are refused and never mixed with the new.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from oubliette.cluster.ray_calls import RayCallFailed, find_actor, result_of
from oubliette.kit.remote.transport import PeerGone

if TYPE_CHECKING:
    from oubliette.kit.remote.transport import Gone, Receive

OPEN_SECONDS: Final = 5.0
"""Time to find a peer and to greet it."""

RETRY_SECONDS: Final = 1.0
RETRY_PAUSE: Final = 0.1
"""Time during which a greeting is repeated to a peer that is being started, and its pauses."""

DELIVER_SECONDS: Final = 30.0
"""Time in which a peer must accept a batch."""

_log = structlog.get_logger("oubliette.cluster")
_encode = msgspec.msgpack.Encoder().encode


class _Batch(msgspec.Struct, array_like=True, frozen=True):
    """Frames of one connection."""

    node: str
    epoch: int
    link: int
    frames: list[bytes]


_decode = msgspec.msgpack.Decoder(_Batch).decode
_decode_reply = msgspec.msgpack.Decoder(list[bytes]).decode
_NOTHING: Final = _encode([])


@dataclass(eq=False)
class _Outgoing:
    """A connection to a peer."""

    handle: Any
    epoch: int
    link: int
    notice: asyncio.Task[None] | None = None


@dataclass(eq=False)
class _Incoming:
    """A connection from a peer; `one` keeps its batches in order."""

    epoch: int
    link: int
    one: asyncio.Lock = field(default_factory=asyncio.Lock)


class RayTransport:
    """The connections of a node; all methods are called on the loop of its program.

    Args:
        node: name of this node.
        epoch: number of its run, higher than that of each earlier one.
    """

    def __init__(self, node: str, epoch: int) -> None:
        self._node = node
        self.epoch = epoch
        self._links = itertools.count(1)
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, _Incoming] = {}
        self._handles: dict[str, Any] = {}  # kept over a loss: to find one needs Ray's head
        self._alive: dict[str, int] = {}  # epoch of each peer that was not reported as gone
        self._started = asyncio.Event()
        self._receive: Receive
        self._gone: Gone

    # ------------------------------------------------------------ the port
    @property
    def node(self) -> str:
        return self._node

    def start(self, receive: Receive, gone: Gone) -> None:
        """Deliver from now on; greetings wait for this."""
        self._receive, self._gone = receive, gone
        self._started.set()

    async def send(self, node: str, frames: list[bytes]) -> list[bytes]:
        """Hand a batch to a peer; complete when the peer has accepted it, with its reply.

        Raises:
            PeerGone: it cannot be reached, was started again, or did not accept it in 30 s.
        """
        peer = self._outgoing.get(node) or await self._open(node)
        batch = _encode(_Batch(self._node, self.epoch, peer.link, frames))
        try:
            reply = await result_of(peer.handle.deliver.remote(batch), DELIVER_SECONDS)
        except RayCallFailed as failed:
            self._lost(node, peer, str(failed))
            raise PeerGone(node, str(failed)) from failed
        except asyncio.CancelledError:
            # The batch may or may not arrive, so nothing may follow it on this connection.
            self._lost(node, peer, "a batch was given up")
            raise
        if not reply:
            self._lost(node, peer, "it was started again")
            raise PeerGone(node, "it was started again")
        return [] if reply == _NOTHING else _decode_reply(reply)

    async def close(self) -> None:
        peers = list(self._outgoing.values())
        self._outgoing.clear()
        notices = [peer.notice for peer in peers if peer.notice is not None]
        for notice in notices:
            notice.cancel()
        await asyncio.gather(*notices, return_exceptions=True)

    # ------------------------------------------------------------ outgoing
    async def _open(self, node: str) -> _Outgoing:
        retry_until = asyncio.get_running_loop().time() + RETRY_SECONDS
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                handle = self._handles.get(node) or await find_actor(node)
                while True:
                    link = next(self._links)
                    try:
                        greeting = handle.greet.remote(self._node, self.epoch, link)
                        epoch = await result_of(greeting, OPEN_SECONDS)
                        break
                    except RayCallFailed as failed:
                        if self._handles.pop(node, None) is not None:
                            handle = await find_actor(node)  # it may be another actor by now
                            continue
                        now = asyncio.get_running_loop().time()
                        if not failed.passing or now > retry_until:
                            raise
                        # Ray has not yet learned where the new process is, and does not wait.
                        await asyncio.sleep(RETRY_PAUSE)
        except TimeoutError:
            raise PeerGone(node, f"no answer to a greeting in {OPEN_SECONDS:g} s") from None
        except RayCallFailed as failed:
            raise PeerGone(node, str(failed)) from failed
        self._handles[node] = handle
        self._meet(node, epoch)
        peer = self._outgoing[node] = _Outgoing(handle, epoch, link)
        peer.notice = asyncio.create_task(self._await_death(node, peer), name=f"notice of {node}")
        return peer

    async def _await_death(self, node: str, peer: _Outgoing) -> None:
        try:
            await result_of(peer.handle.stay.remote(), None)
            reason = "its notice ended"
        except RayCallFailed as failed:
            reason = str(failed)
        peer.notice = None
        self._lost(node, peer, reason)

    def _lost(self, node: str, peer: _Outgoing, reason: str) -> None:
        if self._outgoing.get(node) is not peer:
            return
        del self._outgoing[node]
        if peer.notice is not None:
            peer.notice.cancel()
        self._report(node, reason)

    def _meet(self, node: str, epoch: int) -> None:
        """Note the run of a peer; its earlier one is gone."""
        if self._alive.setdefault(node, epoch) < epoch:
            self._report(node, "it was started again")
            self._alive[node] = epoch

    def _report(self, node: str, reason: str) -> None:
        """Report to the kit that a peer is gone, once for each run and connection."""
        if self._alive.pop(node, None) is not None:
            _log.warning("peer gone", node=self._node, peer=node, reason=reason)
            self._gone(node, reason)

    # ------------------------------------------------------------ incoming
    async def greeted(self, node: str, epoch: int, link: int) -> int:
        """Accept a connection from a peer, in the place of its earlier one; return our epoch.

        Raises:
            ValueError: it is older than one that is known.
        """
        await self._started.wait()
        known = self._incoming.get(node)
        if known is not None and (epoch, link) <= (known.epoch, known.link):
            raise ValueError(f"{self._node} knows a newer connection of {node}")
        self._incoming[node] = _Incoming(epoch, link)
        ours = self._outgoing.get(node)
        if ours is not None and ours.epoch < epoch:
            self._lost(node, ours, "it was started again")
        elif known is not None and known.epoch == epoch:
            self._report(node, "its connection was lost")
        self._meet(node, epoch)
        return self.epoch

    async def delivered(self, packed: bytes) -> bytes:
        """Take a batch and return the reply; empty: it is not of that peer's newest connection.

        Bytes both ways: Ray copies them as they are, and pickles anything else.
        """
        batch = _decode(packed)
        known = self._incoming.get(batch.node)
        if known is None or (known.epoch, known.link) != (batch.epoch, batch.link):
            return b""
        async with known.one:
            reply = await self._receive(batch.node, batch.frames)
        return _encode(reply) if reply else _NOTHING
