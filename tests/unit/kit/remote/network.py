"""A network of nodes on one loop, for tests: real bytes, and knobs for what goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oubliette.kit.remote.transport import PeerGone

if TYPE_CHECKING:
    from oubliette.kit.remote.transport import Gone, Receive


class Network:
    """The nodes that can reach each other.

    Knobs: `yields` is how many turns of the loop each batch takes, `reply_yields` how many its
    reply; `hold` keeps what one node sends to another until `release`, replies too; `sever` loses all
    between two nodes until `heal`; `cut` ends a node for all others; `inject` delivers any bytes.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, MemoryTransport] = {}
        self.yields = 0
        self.reply_yields = 0
        self.sent = 0
        self._held: dict[tuple[str, str], asyncio.Event] = {}
        self._severed: dict[frozenset[str], float] = {}

    def node(self, name: str) -> MemoryTransport:
        """Return the transport of a new node; one that had the name is cut off first."""
        if name in self.nodes:
            self.cut(name)
        self.nodes[name] = MemoryTransport(self, name)
        return self.nodes[name]

    def cut(self, name: str, reason: str = "killed", *, told: bool = True) -> None:
        """End a node: nothing leaves or reaches it any more, and the others are told if `told`."""
        dead = self.nodes.pop(name)
        dead.alive = False
        for (sender, receiver), held in list(self._held.items()):
            if name in {sender, receiver}:
                held.set()
                del self._held[sender, receiver]
        if told:
            for other in list(self.nodes.values()):
                other.told_gone(name, reason)

    def hold(self, sender: str, receiver: str) -> None:
        """Keep what `sender` sends to `receiver`, batches already on the way too."""
        self._held[sender, receiver] = asyncio.Event()

    def release(self, sender: str, receiver: str) -> None:
        """Let go what was held, in its order."""
        self._held.pop((sender, receiver)).set()

    def sever(self, one: str, other: str, seconds: float) -> None:
        """Lose all between two nodes, with no word to either; a batch fails after `seconds`."""
        self._severed[frozenset((one, other))] = seconds

    def heal(self, one: str, other: str) -> None:
        """Let two nodes reach each other again; what was lost stays so."""
        del self._severed[frozenset((one, other))]

    async def _lose(self, one: str, other: str) -> None:
        seconds = self._severed.get(frozenset((one, other)))
        if seconds is not None:
            await asyncio.sleep(seconds)
            raise PeerGone(other, f"it did not accept a batch in {seconds:g} s")

    async def inject(self, sender: str, receiver: str, frames: list[bytes]) -> None:
        """Deliver any bytes, as if `sender` had sent them, and the reply to it."""
        if back := await self.nodes[receiver].take(sender, frames):
            await self.nodes[sender].take(receiver, back)

    async def carry(
        self, source: MemoryTransport, receiver: str, frames: list[bytes]
    ) -> list[bytes]:
        """Carry a batch from one node to the other, and its reply back."""
        sender = source.node
        self.sent += 1
        for _ in range(self.yields):
            await asyncio.sleep(0)
        while (held := self._held.get((sender, receiver))) is not None:
            await held.wait()
        await self._lose(sender, receiver)
        target = self.nodes.get(receiver)
        if not source.alive or target is None:
            raise PeerGone(receiver, "no such node" if target is None else "cut off")
        back = await target.take(sender, [bytes(frame) for frame in frames])
        for _ in range(self.reply_yields):
            await asyncio.sleep(0)
        while back and (held := self._held.get((receiver, sender))) is not None:
            await held.wait()
        await self._lose(sender, receiver)
        if not source.alive or not target.alive:
            raise PeerGone(receiver, "cut off")
        return [bytes(frame) for frame in back]


class MemoryTransport:
    """`Transport` of one node of a `Network`."""

    def __init__(self, network: Network, node: str) -> None:
        self.node = node
        self.alive = True
        self._network = network
        self._receive: Receive | None = None
        self._gone: Gone | None = None
        self._turns: dict[str, asyncio.Lock] = {}

    def start(self, receive: Receive, gone: Gone) -> None:
        """Deliver from now on."""
        self._receive, self._gone = receive, gone

    async def send(self, node: str, frames: list[bytes]) -> list[bytes]:
        """Hand a batch to a peer, and return its reply."""
        return await self._network.carry(self, node, frames)

    async def take(self, sender: str, frames: list[bytes]) -> list[bytes]:
        """Deliver a batch to this node, after those that came before from the same peer."""
        async with self._turns.setdefault(sender, asyncio.Lock()):
            if self._receive is None or not self.alive:
                return []
            return await self._receive(sender, frames)

    def told_gone(self, node: str, reason: str) -> None:
        """Tell this node that another one is dead."""
        if self._gone is not None:
            self._gone(node, reason)
