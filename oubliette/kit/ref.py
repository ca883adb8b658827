"""Refs, the addresses of actors. A ref is a name, resolved at each send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import pykka

from oubliette.kit.errors import AskTimeout, WouldBlockError
from oubliette.kit.mailbox import Envelope, Mailbox
from oubliette.kit.messages import Down, Message, Reply, round_trip_answer
from oubliette.kit.pykka_future import AsyncioFuture, on_a_loop
from oubliette.kit.replies import LoopReply
from oubliette.kit.shutdown import end_actor, within
from oubliette.kit.trace_context import current_scope

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from oubliette.clock import Clock
    from oubliette.kit.errors import ActorDead
    from oubliette.kit.mailbox import EndObserver
    from oubliette.kit.shutdown import RunningActor
    from oubliette.kit.trace_context import TraceScope
    from oubliette.kit.wait_graph import WaitGraph

T = TypeVar("T")

ASK_TIMEOUT = 30.0
"""Seconds that an ask waits for its answer by default."""


class ActorTable(Protocol):
    """The names of a System, and the other parts of it that its refs need."""

    @property
    def name(self) -> str:
        """Name of the System, for logs."""
        ...

    @property
    def clock(self) -> Clock:
        """Clock for deadlines."""
        ...

    @property
    def waits(self) -> WaitGraph:
        """Graph of the actors that wait for each other."""
        ...

    def actor(self, name: str) -> RunningActor | None:
        """Return the live actor of that name."""
        ...

    def dead(self, name: str) -> ActorDead:
        """Return the error of an ask that the actor `name` does not answer."""
        ...

    def waiting_actor(self, scope: TraceScope) -> Mailbox | None:
        """Return the mailbox that is blocked while the current task waits, if there is one."""
        ...

    def keep_dead_letter(self, name: str, envelope: Envelope, why: str) -> None:
        """Keep a message that no actor will handle as a dead letter, and log it."""
        ...

    def run_blocking(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the System's loop from a thread, for at most `timeout` seconds."""
        ...


class Ref:
    """The name of an actor in a System.

    After a restart the same ref reaches the new incarnation. It never keeps an ended actor alive.
    """

    __slots__ = ("__weakref__", "_box", "_system", "name")

    def __init__(self, system: ActorTable, name: str, box: Mailbox | None = None) -> None:
        self._system = system
        self._box = box
        self.name = name

    def __repr__(self) -> str:
        return f"<Ref {self.name} in {self._system.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self.name == other.name and self._system is other._system

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def incarnation(self) -> int:
        """Number of the live incarnation; the last known one if none is, 0 if none ever was."""
        box = self._resolve() or self._box
        return 0 if box is None else box.incarnation

    def is_alive(self) -> bool:
        """Return whether an actor of that name accepts messages now."""
        return self._resolve() is not None

    # ------------------------------------------------------------ verbs
    def tell(self, message: Message) -> None:
        """Send without waiting. For an actor that has ended the message becomes a dead letter.

        Raises:
            MailboxFull: the actor's mailbox is at its bound.
        """
        box = self._box
        if box is None or box.closed:
            box = self._resolve()
        if box is None:
            self._system.keep_dead_letter(self.name, Envelope(message), "no such actor")
            return
        if box.codec is not None:
            message = box.codec(message)
        scope = current_scope.get()
        if scope is None:
            box.post(Envelope(message))
        else:
            box.post(Envelope(message, None, scope.name, None, scope.envelope.trace))

    @overload
    async def ask(self, message: Reply[T], timeout: float = ASK_TIMEOUT) -> T: ...
    @overload
    async def ask(self, message: Message, timeout: float = ASK_TIMEOUT) -> Any: ...
    async def ask(self, message: Any, timeout: float = ASK_TIMEOUT) -> Any:
        """Send, and wait at most `timeout` seconds for the answer.

        Raises:
            ActorDead: the actor has ended, or ended before it answered.
            AskTimeout: no answer came in time.
            DeadlockError: the actor waits for the asking one, directly or through others.
            Exception: what the handler raised.
        """
        box = self._box
        if box is None or box.closed:
            box = self._must_resolve()
        system = self._system
        kind = message.__class__
        if box.codec is not None:
            message = box.codec(message)
        reply = LoopReply()
        future = reply.future
        clock = system.clock
        envelope = Envelope(message, reply, None, clock.monotonic() + timeout)
        scope = current_scope.get()
        me: Mailbox | None = None
        if scope is not None:
            envelope.sender = scope.name
            envelope.trace = scope.envelope.trace
            me = system.waiting_actor(scope)
            if me is not None:
                system.waits.enter(me, box)
        try:
            box.post(envelope)
            if not future.done():
                timer = clock.call_later(timeout, lambda: self._expired(reply, kind, timeout))
                try:
                    await future
                except asyncio.CancelledError:
                    future.cancel()
                    reply.give_up()
                    raise
                finally:
                    timer.cancel()
            answer = future.result()
        finally:
            if me is not None:
                system.waits.leave(me)
        if box.codec is not None:
            return round_trip_answer(kind, answer)
        return answer

    async def send(self, message: Message, timeout: float | None = None) -> None:
        """Send, and wait until the mailbox has accepted the message (back-pressure).

        Args:
            message: the message.
            timeout: seconds to wait for room; None waits as long as the actor lives.

        Raises:
            ActorDead: the actor has ended, or ended before there was room.
            AskTimeout: there was no room in time; the message was not sent.
            DeadlockError: the actor waits for the sending one, directly or through others.
        """
        box = self._box
        if box is None or box.closed:
            box = self._must_resolve()
        system = self._system
        if box.codec is not None:
            message = box.codec(message)
        scope = current_scope.get()
        receipt = LoopReply()
        envelope = Envelope(message, None, None, None, None, receipt)
        me: Mailbox | None = None
        if scope is not None:
            envelope.sender = scope.name
            envelope.trace = scope.envelope.trace
            me = system.waiting_actor(scope)
        box.post(envelope)
        if receipt.future.done():
            return receipt.future.result()
        try:
            if me is not None:
                system.waits.enter(me, box)
            try:
                if timeout is None:
                    await receipt.future
                elif not await within(receipt, timeout, system.clock.call_later):
                    raise AskTimeout(f"{self.name}: no room in its mailbox for {timeout} s")
            finally:
                if me is not None:
                    system.waits.leave(me)
        finally:
            receipt.future.cancel()

    @overload
    def ask_blocking(self, message: Reply[T], timeout: float = ASK_TIMEOUT) -> T: ...
    @overload
    def ask_blocking(self, message: Message, timeout: float = ASK_TIMEOUT) -> Any: ...
    def ask_blocking(self, message: Any, timeout: float = ASK_TIMEOUT) -> Any:
        """Ask from a thread, which waits at most `timeout` seconds.

        Raises:
            WouldBlockError: this thread runs an event loop; `await ref.ask(...)` there.
            ActorDead: the actor has ended, or ended before it answered.
            AskTimeout: no answer came in time.
            Exception: what the handler raised.
        """
        if on_a_loop():
            raise WouldBlockError(f"{self.name}: await ref.ask(...) on a loop's thread")
        box = self._must_resolve()
        kind = message.__class__
        if box.codec is not None:
            message = box.codec(message)
        reply = AsyncioFuture()
        scope = current_scope.get()
        envelope = Envelope(message, reply, None, self._system.clock.monotonic() + timeout)
        if scope is not None:
            envelope.sender, envelope.trace = scope.name, scope.envelope.trace
        box.post(envelope)
        try:
            answer = reply.get(timeout=timeout)
        except pykka.Timeout:
            reply.give_up()
            raise self.late(kind, timeout) from None
        return answer if box.codec is None else round_trip_answer(kind, answer)

    async def stop(self, timeout: float = 5.0) -> bool:
        """Stop the actor after the messages in its mailbox; cancel it after `timeout` seconds.

        Returns:
            Whether it ended without being cancelled, or had ended already.

        Raises:
            DeadlockError: the actor waits for the stopping one, directly or through others.
        """
        return await self._end(timeout)

    async def kill(self) -> None:
        """Cancel the actor's current activity and wait until it has ended. `on_exit` still runs."""
        await self._end(0)

    def stop_blocking(self, timeout: float = 5.0) -> bool:
        """Stop the actor from a thread; see `stop`.

        Raises:
            WouldBlockError: this thread runs an event loop; `await ref.stop()` there.
        """
        if on_a_loop():
            raise WouldBlockError(f"{self.name}: await ref.stop() on a loop's thread")
        return self._system.run_blocking(self.stop(timeout), timeout + 30)

    def watch(self, observer: EndObserver) -> None:
        """Notify `observer` once of the actor's end, at once if there is none of that name."""
        target = self._system.actor(self.name)
        if target is None:
            observer.deliver(Down(name=self.name, reason="noproc"))
        else:
            target.actor_inbox.watch(observer)

    def unwatch(self, observer: EndObserver) -> None:
        """Stop notifying `observer`; a notice that was already sent still arrives."""
        target = self._system.actor(self.name)
        if target is not None:
            target.actor_inbox.unwatch(observer)

    # ------------------------------------------------------------ inside
    async def _end(self, timeout: float) -> bool:
        box = self._resolve()
        system = self._system
        actor = system.actor(self.name)
        if actor is None:
            return True
        scope = current_scope.get()
        me = None if scope is None else system.waiting_actor(scope)
        box = actor.actor_inbox
        if me is not None:
            system.waits.enter(me, box)
        try:
            return await end_actor(actor, timeout, system.clock.call_later)
        finally:
            if me is not None:
                system.waits.leave(me)

    def resolve(self) -> RunningActor | None:
        """Return the live actor of that name, for the kit itself."""
        return self._system.actor(self.name)

    def post(self, envelope: Envelope) -> None:
        """Put an envelope into the mailbox, for the kit itself.

        Raises:
            ActorDead: the actor has ended.
        """
        box = self._must_resolve()
        if box.codec is not None:
            envelope.message = box.codec(envelope.message)
        box.post(envelope)

    def late(self, kind: type, timeout: float) -> AskTimeout:
        """Return the error of an ask of this type that was not answered in time."""
        return AskTimeout(f"{self.name} did not answer {kind.__name__} within {timeout:g} s")

    def _resolve(self) -> Mailbox | None:
        box = self._box
        if box is not None and not box.closed:
            return box
        actor = self._system.actor(self.name)
        if actor is None or actor.actor_inbox.closed:
            return None
        self._box = box = actor.actor_inbox
        return box

    def _must_resolve(self) -> Mailbox:
        box = self._resolve()
        if box is None:
            raise self._system.dead(self.name)
        return box

    def _expired(self, reply: LoopReply, kind: type, timeout: float) -> None:
        if not reply.done:
            reply.set_error(self.late(kind, timeout))
            reply.give_up()
