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
from oubliette.kit.remote.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from oubliette.clock import TimerHandle
    from oubliette.kit.mailbox import EndObserver
    from oubliette.kit.replies import LoopReply
    from oubliette.kit.system import System

log = structlog.get_logger("oubliette.kit")

GREETING = 10.0
"""Seconds that a peer has to answer the first batch."""
SILENT = 10.0
"""Seconds without a batch of a peer after which it is sent an empty one, if anything waits for it:
the transport then finds out whether it can be reached at all."""
NOBODY = (0, 0)
QUICK = 0.001
"""Seconds that the reply to a batch waits for the answers to its requests."""
QUICK_TURNS = 8
"""Turns of the loop that it waits for them at most."""
HELD = 0.005
"""Seconds for which a reply is held while there is nothing at all to send: an answer that has to
be stored first takes about so long, and would need a call of its own. The peer sends nothing
meanwhile."""


class LinkOwner(Protocol):
    """This node, as far as its links need it."""

    system: System
    transport: Transport
    epoch: int
    held: float
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
        self._turns = Turns()
        self._gathers = False
        self._filled: asyncio.Future[None] | None = None
        """Set while a reply is held: there is something to send."""
        self._probe: TimerHandle | None = None
        self._heard = False
        """Whether a batch of the peer has come since the timer of the probe was set."""
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

    def reply(self, frame: frames.Outcome) -> None:
        """Send the outcome of a request or a watch."""
        if self._owner.closed is None or self._peer is not None:
            self.outbound.push_outcome(frame)

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
        if self._probe is None and self.outbound.pending:
            self._heard = False
            self._probe = self.system.clock.call_later(SILENT, self._look_for_life)
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)
        if self._pump is None and not self._gathers:
            self._pump = self._owner.background(self._run())

    def _look_for_life(self) -> None:
        """Send a peer that something waits for an empty batch, if it has been silent.

        What is under way to it has a deadline of the transport; a request that has arrived has
        none, and its answer is lost with a network that is cut.
        """
        self._probe = None
        if not self.outbound.pending or self._owner.closed is not None:
            return
        if not self._heard and self._peer is not None:
            self._owes_header = True
        self._wake()

    async def _run(self) -> None:
        me = asyncio.current_task()
        try:
            while (before := self._before) is not None:
                # The transport gets one batch after the other, also after a loss.
                await asyncio.wait({before})
                if self._before is before:
                    self._before = None
            while self._pump is me and (self.outbound or self._owes_header):
                back = await self._send_batch()
                if back and self._pump is me:
                    self._take_reply(back)
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

    async def _send_batch(self) -> list[bytes]:
        send = self._owner.transport.send
        self._owes_header = False
        if self._peer is None:
            back = await self._turns.call(send(self.node, [self._header(0)]))
            if self.outbound and self._peer is None:
                await self._meet()
            return back
        batch = [self._header(self._turns.give()), *self.outbound.batch()]
        back = await self._turns.call(send(self.node, batch))
        self.outbound.arrived()
        return back

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

    def _header(self, turn: int) -> bytes:
        peer = self._peer or NOBODY
        return frames.encode(frames.BatchHeader(self._owner.epoch, self._contact, *peer, turn))

    # ------------------------------------------------------------ in
    async def receive(self, batch: list[bytes]) -> list[bytes]:
        """Handle a batch of the peer's call, and return the reply. Never raises.

        The actors have their turn before the next batch. The answers that they give in it, or the
        next one where none was given, are the reply: so most asks take one call. Other frames go in
        a call of this node, after it.
        """
        header = self._opened(batch)
        if header is None:
            return []
        sender = (header.epoch, header.contact)
        while self._peer == sender and self._turns.is_early(header.turn):
            await self._turns.returned()
        self._gathers = True
        try:
            self._take(header, batch)
            await self._let_answer()
            return self._reply(sender)
        finally:
            self.flush()

    def flush(self) -> None:
        """Send what waits for a reply."""
        self._gathers = False
        if self.outbound or self._owes_header:
            self._wake()

    async def _let_answer(self) -> None:
        fresh = self.inbound.fresh
        loop = asyncio.get_running_loop()
        until = loop.time() + QUICK
        await asyncio.sleep(0)
        for _ in range(QUICK_TURNS):
            if not fresh or self._pump is not None or loop.time() > until:
                break
            await asyncio.sleep(0)
        if fresh and self._pump is None and not self.outbound and not self._owes_header:
            await self._fill()
        fresh.clear()

    async def _fill(self) -> None:
        """Wait until there is something to send, or the peer has waited long enough."""
        loop = asyncio.get_running_loop()
        filled = self._filled = loop.create_future()
        timer = loop.call_later(self._owner.held, lambda: filled.done() or filled.set_result(None))
        try:
            await filled
        finally:
            timer.cancel()
            self._filled = None

    def _reply(self, sender: tuple[int, int]) -> list[bytes]:
        """Return what goes back to `sender`: outcomes, unless something is before them."""
        if not self._gathers or self._pump is not None or self._owes_header:
            return []
        if self._peer != sender:
            return []  # it is not the reply of that life
        outcomes = self.outbound.outcomes()
        return [self._header(self._turns.give()), *outcomes] if outcomes else []

    def _take_reply(self, batch: list[bytes]) -> None:
        header = self._opened(batch)
        if header is not None:
            self._take(header, batch)

    def _opened(self, batch: list[bytes]) -> frames.BatchHeader | None:
        try:
            return frames.decode_header(batch[0])
        except (msgspec.DecodeError, IndexError) as error:
            log.warning("garbled batch dropped", node=self.node, why=str(error))
            return None

    def _take(self, header: frames.BatchHeader, batch: list[bytes]) -> None:
        if not self._greet(header) or not self._is_next(header.turn):
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

    def _is_next(self, turn: int) -> bool:
        """Note a batch of that number; return whether it is to be handled."""
        if turn == 0:
            return True
        place = self._turns.take(turn)
        if place == "again":
            log.warning("batch that came before refused", node=self.node, turn=turn)
        elif place == "missing":
            self.lose("a batch of it is missing")
        return place == "next"

    def _greet(self, header: frames.BatchHeader) -> bool:
        """Note who sent a batch; return whether its frames are from and for the present lives."""
        sender = (header.epoch, header.contact)
        if sender < self._newest or header.contact == 0:
            log.warning("batch of an earlier life refused", node=self.node, epoch=header.epoch)
            return False
        if self._peer is not None and sender != self._peer:
            again = header.epoch != self._peer[0]
            self.lose("it was started again" if again else "it gave this node up", anew=False)
        self._heard = True
        if self._peer is None:
            self._peer = self._newest = sender
            self._turns.restart()
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
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        self._peer, self.lost = None, reason
        self._owes_header = False
        self._turns.free()
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
