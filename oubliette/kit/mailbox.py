"""Bounded mailboxes with senders of any thread and one actor as the reader."""

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
    """One message with its metadata. `message` and `reply_to` are Pykka's, the rest is ours."""

    message: Any
    """The message."""

    reply_to: Any = None
    """Receiver of the answer; None for a `tell`."""

    sender: str | None = None
    """Name of the actor that sent it; None from outside any actor."""

    deadline: float | None = None
    """Monotonic seconds of the System's clock at which the asker gives up."""

    trace: dict[str, str] | None = None
    """Trace context; passed on with every message that the handler sends."""

    receipt: Any = None
    """Set once the mailbox has accepted the message (`Ref.send`)."""

    deferred: Any = None
    """The `Deferred` of a handler that answers later (`Actor.defer`)."""


class Undeliverable(Protocol):
    """Receiver of messages that a mailbox cannot deliver to its actor."""

    def rejected(self, box: Mailbox, envelope: Envelope) -> None:
        """Answer a message for an actor that has ended, or keep it as a dead letter."""
        ...


class EndObserver(Protocol):
    """Receiver of the notice that an actor has ended."""

    def deliver(self, down: Down) -> None:
        """Handle the notice."""
        ...


class Mailbox:
    """Pykka's `ActorInbox` on a loop. Its state changes only on the thread of its `LoopBridge`.

    A plain `tell` that does not fit is refused. Asks and sends that do not fit wait in `overflow`,
    in order, and their senders with them; so `items` is never longer than `limit`, except for the
    kit's own notices (Down, timers, results, stop), which must not get lost. Each envelope that is
    taken out makes room for one from `overflow`, so no sender waits while there is room.
    """

    __slots__ = (
        "__weakref__",
        "at_once",
        "bridge",
        "closed",
        "codec",
        "down",
        "handle",
        "inbound",
        "incarnation",
        "items",
        "limit",
        "name",
        "overflow",
        "thread",
        "undeliverable",
        "waiter",
        "watchers",
    )

    def __init__(self) -> None:
        # A list, since it is short and an empty deque takes ten times the memory.
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
        self.undeliverable: Undeliverable | None = None
        self.at_once: frozenset[type] = _NONE
        """Types of message that an idle actor handles while they are sent."""
        self.handle: Callable[[Envelope], bool] | None = None
        """Handler of one of these; returns whether the actor ends with it."""

    # ------------------------------------------------------------ Pykka's protocol
    def put(self, envelope: Any, /) -> None:
        """Accept one of Pykka's envelopes, regardless of the bound."""
        self.post(Envelope(envelope.message, envelope.reply_to), urgent=True)

    def get(self) -> Envelope:
        """Remove and return the oldest envelope, and accept the first one from `overflow`."""
        envelope = self.items.pop(0)
        if self.overflow:
            self._admit()
        return envelope

    def empty(self) -> bool:
        """Whether there is no envelope to return."""
        return not self.items

    # ------------------------------------------------------------ senders
    def post(self, envelope: Envelope, *, urgent: bool = False) -> None:
        """Accept an envelope, from any thread; `urgent` ones regardless of the bound.

        Raises:
            MailboxFull: it is a plain `tell` and the mailbox is at its bound.
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
        """Have the idle actor handle an envelope now."""
        assert self.handle is not None
        self.waiter = None  # the actor is busy: envelopes that come meanwhile wait for their turn
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
            # From here on it is like a `tell`: if it is not handled, it is a dead letter.
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
        """Use the loop of `bridge` from now on; called on that loop's thread."""
        self.thread = bridge.thread
        self.bridge = bridge

    def on_loop(self, function: Callable[[], object]) -> None:
        """Call `function` on the actor's loop: now if this is its thread, else soon."""
        if self.bridge is None or threading.get_ident() == self.thread:
            function()
        else:
            self.bridge.call(function)

    def wake(self) -> None:
        """Wake the actor's task so that it reads its mailbox."""
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Accept nothing more, and refuse all envelopes that are here."""
        self.closed = True
        while self.items:
            self.reject(self.items.pop(0))
        while self.overflow:
            self.reject(self.overflow.popleft())

    def reject(self, envelope: Envelope) -> None:
        """Answer an envelope that the actor will not handle, or keep it as a dead letter."""
        if self.undeliverable is not None:
            self.undeliverable.rejected(self, envelope)

    # ------------------------------------------------------------ watchers
    def watch(self, sink: EndObserver) -> None:
        """Notify `sink` once when the actor has ended; at once if it has. From any thread."""
        self.on_loop(lambda: self._watch(sink))

    def _watch(self, sink: EndObserver) -> None:
        if self.down is not None:
            sink.deliver(Down(name=self.name, reason="noproc", incarnation=self.incarnation))
            return
        if self.watchers is None:
            self.watchers = {}
        self.watchers[sink] = None

    def unwatch(self, sink: EndObserver) -> None:
        """Stop notifying `sink`."""
        if self.watchers is not None:
            self.watchers.pop(sink, None)

    def announce(self, down: Down) -> None:
        """Notify every watcher, once, that the actor has ended."""
        self.down = down
        watchers, self.watchers = self.watchers, None
        for sink in watchers or ():
            sink.deliver(down)

    def deliver(self, down: Down) -> None:
        """Receive, as a watcher, the notice that another actor has ended."""
        self.post(Envelope(down), urgent=True)
