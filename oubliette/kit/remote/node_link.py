"""Node link: both directions between this node and one peer, from a greeting to its loss."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from oubliette.kit.errors import MailboxFull
from oubliette.kit.messages import Down
from oubliette.kit.remote import frames
from oubliette.kit.remote.inbound import Inbound, garbled
from oubliette.kit.remote.outbound import Outbound, Parcel
from oubliette.kit.remote.transport import PeerGone, Transport

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from oubliette.kit.mailbox import EndObserver
    from oubliette.kit.replies import LoopReply
    from oubliette.kit.system import System

log = structlog.get_logger("oubliette.kit")

GREETING = 10.0
"""Seconds that a peer has to answer the first batch."""
NOBODY = (0, 0)


class LinkOwner(Protocol):
    """This node, as far as its links need it."""

    system: System
    transport: Transport
    epoch: int
    numbers: Iterator[int]
    closed: str | None

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that ends with the connection."""
        ...


class NodeLink:
    """The link to one peer.

    Each side has an identity: its epoch, and a contact number that it raises when it gives the
    other side up. Frames are sent only to an identity that is known, and taken only from the newest
    one and for the present one: what was meant for or comes from an earlier life is refused. A side
    that meets a newer identity ends all that it had with the older.
    """

    def __init__(self, owner: LinkOwner, node: str) -> None:
        self.node = node
        self.system = owner.system
        self._owner = owner
        self._contact = 1
        self._peer: tuple[int, int] | None = None
        self._newest = NOBODY
        self._owes_header = False
        self._met: asyncio.Future[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None
        self.lost: str | None = None
        """Reason why the peer could not be reached last; None if it can."""
        self.outbound = Outbound(owner.system.clock, owner.system.bridge, self._wake, owner.numbers)
        self.inbound = Inbound(self)

    @property
    def pump(self) -> asyncio.Task[None] | None:
        """The task that sends, while there is something to send."""
        return self._pump

    # ------------------------------------------------------------ out
    def post(self, parcel: Parcel) -> None:
        """Send a message.

        Raises:
            MailboxFull: it is a `tell`, and too much waits for the peer already.
        """
        if self._owner.closed is not None:
            self._refuse(parcel, PeerGone(self.node, self._owner.closed))
            return
        self.outbound.post(parcel)

    def post_from_afar(self, parcel: Parcel) -> None:
        """Send a message of another thread; a `tell` without room becomes a dead letter."""
        try:
            self.post(parcel)
        except MailboxFull as full:
            self.system.keep_dead_letter(parcel.to, parcel.envelope, full.message)
        except TypeError as error:
            self._refuse(parcel, error)

    def end(self, name: str, seconds: float, waiting: LoopReply) -> None:
        """Request the end of an actor of the peer."""
        if self._owner.closed is not None:
            waiting.set_error(PeerGone(self.node, self._owner.closed))
        else:
            self.outbound.end(name, seconds, waiting)

    def watch(self, name: str, address: str, observer: EndObserver) -> None:
        """Watch an actor of the peer."""
        if self._owner.closed is not None:
            observer.deliver(Down(name=address, reason="noconnection"))
        else:
            self.outbound.watch(name, address, observer)

    def push(self, frame: frames.AnyFrame) -> None:
        """Send a frame that is not held back."""
        if self._owner.closed is None or self._peer is not None:
            self.outbound.push(frame)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task that ends with the connection."""
        self._owner.background(work)

    def _refuse(self, parcel: Parcel, error: Exception) -> None:
        if parcel.waiting is not None:
            parcel.waiting.set_exception((type(error), error, None))
        else:
            address = f"{self.node}!{parcel.to}"
            self.system.keep_dead_letter(address, parcel.envelope, str(error))

    def _wake(self) -> None:
        if self._pump is None:
            self._pump = self._owner.background(self._run())

    async def _run(self) -> None:
        me = asyncio.current_task()
        try:
            while (before := self._before) is not None:
                # The transport gets one batch after the other, also after a loss.
                await asyncio.wait({before})
                if self._before is before:
                    self._before = None
            while self._pump is me and (self.outbound or self._owes_header):
                await self._send_batch()
        except PeerGone as gone:
            if self._pump is me:
                self.lose(gone.reason)
        except Exception as error:
            log.exception("transport broke", node=self.node)
            if self._pump is me:
                self.lose(f"{type(error).__name__}: {error}")
        finally:
            if self._pump is me:
                self._pump = None

    async def _send_batch(self) -> None:
        if self._peer is None:
            self._owes_header = False
            await self._owner.transport.send(self.node, [self._header()])
            if self.outbound and self._peer is None:
                await self._meet()
            return
        self._owes_header = False
        batch = [self._header(), *self.outbound.batch()]
        await self._owner.transport.send(self.node, batch)
        self.outbound.arrived()

    async def _meet(self) -> None:
        met = self._met = asyncio.get_running_loop().create_future()

        def too_late() -> None:
            if not met.done():
                met.set_exception(PeerGone(self.node, f"it did not answer for {GREETING:g} s"))

        timer = self.system.clock.call_later(GREETING, too_late)
        try:
            await met
        finally:
            timer.cancel()
            self._met = None

    def _header(self) -> bytes:
        peer = self._peer or NOBODY
        return frames.encode(frames.BatchHeader(self._owner.epoch, self._contact, *peer))

    # ------------------------------------------------------------ in
    def take(self, batch: list[bytes]) -> None:
        """Handle a batch of the peer. Never raises."""
        try:
            header = frames.decode_header(batch[0])
        except (msgspec.DecodeError, IndexError) as error:
            log.warning("garbled batch dropped", node=self.node, why=str(error))
            return
        if not self._greet(header):
            return
        identity = self._peer
        for data in batch[1:]:
            if self._peer != identity:  # lost by something in this batch
                return
            self._take_frame(data)

    def _take_frame(self, data: bytes) -> None:
        try:
            frame = frames.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            garbled(self, data, error)
            return
        try:
            if not self.inbound.take(frame):
                self.outbound.finish(frame)
        except Exception:
            # The frames behind it belong to other actors.
            log.exception("frame not handled", node=self.node, kind=type(frame).__name__)

    def _greet(self, header: frames.BatchHeader) -> bool:
        """Note who sent a batch; return whether its frames are from and for the present lives."""
        sender = (header.epoch, header.contact)
        if sender < self._newest or header.contact == 0:
            log.warning("batch of an earlier life refused", node=self.node, epoch=header.epoch)
            return False
        if self._peer is not None and sender != self._peer:
            again = header.epoch != self._peer[0]
            self.lose("it was started again" if again else "it gave this node up", anew=False)
        if self._peer is None:
            self._peer = self._newest = sender
            self.lost = None
            if self._met is not None and not self._met.done():
                self._met.set_result(None)
        if (header.to_epoch, header.to_contact) != (self._owner.epoch, self._contact):
            self._owes_header = True
            self._wake()
            return False
        return True

    # ------------------------------------------------------------ loss
    def lose(self, reason: str, *, anew: bool = True) -> None:
        """End all that was between this node and the peer; with `anew` it must greet again."""
        pump, self._pump = self._pump, None
        if pump is not None:
            self._before = pump
        self._peer, self.lost = None, reason
        self._owes_header = False
        if anew:
            self._contact += 1
            # It may live: then it must learn that what it waits for here will not come.
            self._owes_header = len(self.inbound) > 0
        error = PeerGone(self.node, reason)
        self.inbound.clear()
        unsent = self.outbound.lose(error)
        if pump is not None and pump is not asyncio.current_task():
            pump.cancel()
        if self._owes_header:
            self._wake()
        for parcel in unsent:
            self._refuse(parcel, error)
