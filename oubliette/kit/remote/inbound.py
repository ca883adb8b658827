"""Inbound: what the actors of this node were asked for by one peer, and have not answered yet."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from oubliette.kit.errors import ActorDead, MailboxFull
from oubliette.kit.mailbox import Envelope
from oubliette.kit.remote import frames, kinds
from oubliette.kit.remote.addresses import SEPARATOR
from oubliette.kit.shutdown import RunningActor, end_actor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from oubliette.kit.mailbox import Mailbox
    from oubliette.kit.messages import Down
    from oubliette.kit.replies import ExcInfo
    from oubliette.kit.system import System

log = structlog.get_logger("oubliette.kit")

REQUESTS = 20_000
"""Unanswered requests that a peer may have here; it holds itself to half of that."""


class PeerChannel(Protocol):
    """The way back to the peer, with what belongs to this node."""

    node: str

    @property
    def system(self) -> System:
        """The System of this node."""
        ...

    def reply(self, frame: frames.Outcome) -> None:
        """Send the outcome of a request or a watch."""
        ...

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task that ends with the connection."""
        ...


class RemoteReply:
    """Receiver of an answer whose asker is on another node."""

    __slots__ = ("_inbound", "_number", "done", "on_gone")

    def __init__(self, inbound: Inbound, number: int) -> None:
        self._inbound = inbound
        self._number = number
        self.done = False
        """Whether it was answered, or is no longer waited for."""
        self.on_gone: Callable[[], None] | None = None

    def set(self, value: Any = None) -> None:
        """Answer, unless it is already answered or given up. From any thread."""
        self._inbound.on_loop(lambda: self._finish(lambda: kinds.pack_answer(self._number, value)))

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Answer with an error, unless it is already answered or given up. From any thread."""
        error = (exc_info or sys.exc_info())[1]
        if error is not None:
            self._inbound.on_loop(
                lambda: self._finish(lambda: kinds.pack_error(self._number, error))
            )

    def give_up(self) -> None:
        """Mark it as no longer waited for."""
        if not self.done:
            self.done = True
            gone, self.on_gone = self.on_gone, None
            if gone is not None:
                gone()

    def _finish(self, pack: Callable[[], frames.Outcome]) -> None:
        if not self.done:
            self.done = True
            self._inbound.finished(self._number, pack())


class RemoteObserver:
    """Receiver of the notice of an actor's end whose watcher is on another node."""

    __slots__ = ("_inbound", "_number", "box")

    def __init__(self, inbound: Inbound, number: int, box: Mailbox) -> None:
        self._inbound = inbound
        self._number = number
        self.box = box

    def deliver(self, down: Down) -> None:
        """Send the notice on."""
        self._inbound.ended(self._number, down)


class Inbound:
    """The requests and watches of one peer. Everything in it ends when the peer is lost."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel
        self._requests: dict[int, RemoteReply] = {}
        self._watches: dict[int, RemoteObserver] = {}
        self.fresh: set[int] = set()
        """Numbers of the unanswered requests of the batch that is being handled."""

    def __len__(self) -> int:
        return len(self._requests) + len(self._watches)

    def take(self, frame: frames.AnyFrame) -> bool:
        """Handle a request; return False if the frame is none."""
        if isinstance(frame, frames.MessageFrame):
            self._message(frame)
        elif isinstance(frame, frames.WatchFrame):
            self._watch(frame)
        elif isinstance(frame, frames.EndFrame):
            self._end(frame)
        elif isinstance(frame, frames.GiveUpFrame):
            self._given_up(frame.number)
        else:
            return False
        return True

    def clear(self) -> None:
        """Give up every request and watch: the peer waits for none of them any more."""
        requests, self._requests = self._requests, {}
        watches, self._watches = self._watches, {}
        self.fresh.clear()
        for reply in requests.values():
            reply.give_up()
        for observer in watches.values():
            observer.box.unwatch(observer)

    # ------------------------------------------------------------ outcomes
    def on_loop(self, function: Callable[[], object]) -> None:
        """Call `function` on the System's loop: now if this is its thread, else soon."""
        bridge = self._channel.system.bridge
        if threading.get_ident() == bridge.thread:
            function()
        else:
            bridge.call(function)

    def finished(self, number: int, frame: frames.Outcome) -> None:
        """Send the outcome of a request."""
        if self._requests.pop(number, None) is not None:
            self.fresh.discard(number)
            self._channel.reply(frame)

    def ended(self, number: int, down: Down) -> None:
        """Send the notice of a watch."""
        if self._watches.pop(number, None) is not None:
            text = None if down.error is None else kinds.clean(down.error)
            self._channel.reply(frames.DownFrame(number, down.reason, text, down.incarnation))

    # ------------------------------------------------------------ requests
    def _message(self, frame: frames.MessageFrame) -> None:
        system = self._channel.system
        reply = self._expect(frame.number) if frame.answer else None
        if reply is None and frame.answer:
            return
        try:
            message = kinds.unpack_message(frame.kind, frame.body)
        except kinds.NotSendable as error:
            log.warning("message refused", node=self._channel.node, to=frame.to, why=error.message)
            if reply is not None:
                reply.set_exception((type(error), error, None))
            return
        sender = frame.sender and f"{self._channel.node}{SEPARATOR}{frame.sender}"
        envelope = Envelope(message, None, sender, None, frame.trace)
        if frame.answer == "room":
            envelope.receipt = reply
        elif reply is not None:
            envelope.reply_to = reply
            if frame.seconds is not None:
                envelope.deadline = system.clock.monotonic() + frame.seconds
        actor = system.actor(frame.to)
        if actor is None:
            if reply is None:
                system.keep_dead_letter(frame.to, envelope, "no such actor")
            else:
                reply.set_exception((ActorDead, system.dead(frame.to), None))
            return
        try:
            actor.actor_inbox.post(envelope)
        except MailboxFull as full:
            system.keep_dead_letter(frame.to, envelope, full.message)

    def _expect(self, number: int) -> RemoteReply | None:
        """Return the receiver of a new request's outcome, None if the number is of no use."""
        if number == 0 or number in self._requests or number in self._watches:
            log.warning("request without a number of its own", node=self._channel.node)
            return None
        if len(self) >= REQUESTS:
            full = MailboxFull(f"the node holds {REQUESTS} unanswered requests of this peer")
            self._channel.reply(kinds.pack_error(number, full))
            return None
        self.fresh.add(number)
        reply = self._requests[number] = RemoteReply(self, number)
        return reply

    def _watch(self, frame: frames.WatchFrame) -> None:
        if frame.number in self._watches or frame.number in self._requests:
            return
        actor = self._channel.system.actor(frame.to)
        if actor is None:
            self._channel.reply(frames.DownFrame(frame.number, "noproc"))
            return
        observer = RemoteObserver(self, frame.number, actor.actor_inbox)
        self._watches[frame.number] = observer
        actor.actor_inbox.watch(observer)

    def _end(self, frame: frames.EndFrame) -> None:
        reply = self._expect(frame.number)
        if reply is None:
            return
        actor = self._channel.system.actor(frame.to)
        if actor is None:
            reply.set(value=True)
        else:
            self._channel.background(self._ending(actor, frame.seconds, reply))

    async def _ending(self, actor: RunningActor, seconds: float, reply: RemoteReply) -> None:
        reply.set(await end_actor(actor, seconds, self._channel.system.clock.call_later))

    def _given_up(self, number: int) -> None:
        reply = self._requests.pop(number, None)
        if reply is not None:
            self.fresh.discard(number)
            reply.give_up()
        observer = self._watches.pop(number, None)
        if observer is not None:
            observer.box.unwatch(observer)


def garbled(channel: PeerChannel, data: bytes, error: Exception) -> None:
    """Log a frame that does not decode, and send an error back if it was a request."""
    number = frames.number_of_garbled(data)
    log.warning("garbled frame dropped", node=channel.node, size=len(data), why=str(error))
    if number is not None:
        refusal = kinds.NotSendable(f"the frame does not decode: {error}")
        channel.reply(kinds.pack_error(number, refusal))
