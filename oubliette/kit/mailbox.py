"""Mailboxes: many senders of any thread, one actor; bounded, with room for those who wait."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from oubliette.kit.errors import MailboxFull
from oubliette.kit.messages import Down

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from oubliette.kit.loop_bridge import LoopBridge
    from oubliette.kit.messages import Message

UNBOUNDED = 1 << 62
_NONE: frozenset[type] = frozenset()


class Envelope(msgspec.Struct):
    """A message on its way. `message` and `reply_to` are Pykka's, the rest is ours."""

    message: Any
    """The message."""

    reply_to: Any = None
    """Where the answer goes; None for a tell."""

    sender: str | None = None
    """Name of the actor that sent it; None from outside any actor."""

    deadline: float | None = None
    """Monotonic seconds of the System's clock at which the asker gives up."""

    trace: dict[str, str] | None = None
    """Trace context; passed on with whatever the handler sends."""

    receipt: Any = None
    """Told once the mailbox has taken the message in (`Ref.send`)."""

    deferred: Any = None
    """Who has taken the answer over (`Actor.defer`)."""


class Undeliverable(Protocol):
    """Who takes what a mailbox cannot hand to its actor."""

    def rejected(self, box: Mailbox, envelope: Envelope) -> None:
        """Answer, or keep as a dead letter, a message for an actor that has ended."""
        ...


class EndObserver(Protocol):
    """Who can be told that an actor has ended."""

    def deliver(self, down: Down) -> None:
        """Take the notice."""
        ...


class Mailbox:
    """Pykka's `ActorInbox`, on a loop. All state changes happen on the thread of its gate.

    A plain tell that does not fit is refused. Asks and sends that do not fit wait in `overflow`,
    in order, and their senders with them; so `items` is never longer than `limit`, but for the
    kit's own notices (Down, timers, results, stop), which must not get lost. Each envelope that is
    taken out lets one in, so nobody waits outside while there is room.
    """

    __slots__ = (
        "__weakref__",
        "at_once",
        "bridge",
        "closed",
        "codec",
        "court",
        "down",
        "handle",
        "inbound",
        "incarnation",
        "items",
        "limit",
        "name",
        "overflow",
        "thread",
        "waiter",
        "watchers",
    )

    def __init__(self) -> None:
        # Short, and an empty deque takes ten times the room.
        self.items: list[Envelope] = []
        self.overflow: deque[Envelope] | None = None
        self.limit = UNBOUNDED
        self.closed = False
        self.down: Down | None = None
        self.bridge: LoopBridge | None = None
        self.thread = 0
        self.waiter: asyncio.Future[None] | None = None
        self.inbound = 0
        self.name = ""
        self.incarnation = 0
        self.watchers: dict[EndObserver, None] | None = None
        self.codec: Callable[[Message], Message] | None = None
        self.court: Undeliverable | None = None
        self.at_once: frozenset[type] = _NONE
        """Kinds of message that the actor takes while they are sent, if it rests."""
        self.handle: Callable[[Envelope], bool] | None = None
        """Handles one of these; whether the actor ends with it."""

    # ------------------------------------------------------------ Pykka's protocol
    def put(self, envelope: Any, /) -> None:
        """Take one of Pykka's envelopes in, whatever the bound."""
        self.post(Envelope(envelope.message, envelope.reply_to), urgent=True)

    def get(self) -> Envelope:
        """Hand out the oldest envelope, and let the first of those who wait in."""
        envelope = self.items.pop(0)
        if self.overflow:
            self._admit()
        return envelope

    def empty(self) -> bool:
        """Whether there is nothing to hand out."""
        return not self.items

    # ------------------------------------------------------------ senders
    def post(self, envelope: Envelope, *, urgent: bool = False) -> None:
        """Take an envelope in, from any thread; `urgent` ones whatever the bound.

        Raises:
            MailboxFull: it is a plain tell and the mailbox is at its bound.
        """
        if threading.get_ident() != self.thread:
            self._post_from_afar(envelope, urgent=urgent)
        elif self.closed:
            self.reject(envelope)
        elif not urgent and len(self.items) >= self.limit:
            if envelope.reply_to is None and envelope.receipt is None:
                raise self._full()
            self._let_wait(envelope)
        else:
            waiter = self.waiter
            if waiter is None:
                self._take_in(envelope)
            elif (
                envelope.message.__class__ in self.at_once and not self.items and not waiter.done()
            ):
                self._hand_over(envelope, waiter)
            else:
                self._take_in(envelope)
                self.waiter = None
                if not waiter.done():
                    waiter.set_result(None)

    def _hand_over(self, envelope: Envelope, waiter: asyncio.Future[None]) -> None:
        """Have the actor, which rests, handle an envelope now."""
        assert self.handle is not None
        self.waiter = None  # it is busy: what comes meanwhile waits for its turn
        if envelope.receipt is not None:
            envelope.receipt.set(None)
            envelope.receipt = None
        if self.handle(envelope) or self.items or self.closed:
            if not waiter.done():
                waiter.set_result(None)
        else:
            self.waiter = waiter

    def _post_from_afar(self, envelope: Envelope, *, urgent: bool) -> None:
        bridge = self.bridge
        if bridge is None:  # not started yet: kept for the start
            self.items.append(envelope)
            return
        if (
            not urgent
            and envelope.reply_to is None
            and envelope.receipt is None
            and len(self.items) + self.inbound >= self.limit
        ):
            raise self._full()
        with bridge.lock:
            self.inbound += 1
        bridge.call(self._accept, envelope, urgent)

    def _accept(self, envelope: Envelope, urgent: bool) -> None:  # noqa: FBT001
        bridge = self.bridge
        assert bridge is not None
        with bridge.lock:
            self.inbound -= 1
        if self.closed:
            self.reject(envelope)
        elif urgent or len(self.items) < self.limit:
            self._take_in(envelope)
        else:
            self._let_wait(envelope)
        self.wake()

    def _take_in(self, envelope: Envelope) -> None:
        self.items.append(envelope)
        if envelope.receipt is not None:
            # From here on it is a tell like others: if it is not handled, it is a dead letter.
            envelope.receipt.set(None)
            envelope.receipt = None

    def _full(self) -> MailboxFull:
        return MailboxFull(f"{self.name}: its mailbox holds {self.limit} messages")

    def _let_wait(self, envelope: Envelope) -> None:
        if self.overflow is None:
            self.overflow = deque()
        self.overflow.append(envelope)

    def _admit(self) -> None:
        overflow = self.overflow
        while overflow and len(self.items) < self.limit:
            envelope = overflow.popleft()
            waits = envelope.receipt or envelope.reply_to
            if waits is not None and waits.done:
                continue  # its sender no longer waits, so it was never sent
            self._take_in(envelope)

    # ------------------------------------------------------------ the actor's side
    def bind(self, bridge: LoopBridge) -> None:
        """Belong to the loop of `bridge` from now on; called on its thread."""
        self.thread = bridge.thread
        self.bridge = bridge

    def on_loop(self, function: Callable[[], object]) -> None:
        """Call `function` on the actor's loop: now if this is its thread, else soon."""
        if self.bridge is None or threading.get_ident() == self.thread:
            function()
        else:
            self.bridge.call(function)

    def wake(self) -> None:
        """Let the actor look at its mailbox."""
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Take nothing more, and refuse everything that is here."""
        self.closed = True
        while self.items:
            self.reject(self.items.pop(0))
        while self.overflow:
            self.reject(self.overflow.popleft())

    def reject(self, envelope: Envelope) -> None:
        """Have an envelope answered, or kept, that the actor will not handle."""
        if self.court is not None:
            self.court.rejected(self, envelope)

    # ------------------------------------------------------------ watchers
    def watch(self, sink: EndObserver) -> None:
        """Tell `sink` once when the actor has ended; at once if it is gone. From any thread."""
        self.on_loop(lambda: self._watch(sink))

    def _watch(self, sink: EndObserver) -> None:
        if self.down is not None:
            sink.deliver(Down(name=self.name, reason="noproc", incarnation=self.incarnation))
            return
        if self.watchers is None:
            self.watchers = {}
        self.watchers[sink] = None

    def unwatch(self, sink: EndObserver) -> None:
        """Tell `sink` nothing any more."""
        if self.watchers is not None:
            self.watchers.pop(sink, None)

    def announce(self, down: Down) -> None:
        """Say to every watcher, once, that the actor has ended."""
        self.down = down
        watchers, self.watchers = self.watchers, None
        for sink in watchers or ():
            sink.deliver(down)

    def deliver(self, down: Down) -> None:
        """Be told, as a watcher, that another actor has ended."""
        self.post(Envelope(down), urgent=True)
