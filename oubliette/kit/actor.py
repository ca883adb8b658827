"""Base class of actors: handlers, children, watches, timers, side tasks."""

from __future__ import annotations

import asyncio
import inspect
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

import structlog

from oubliette.kit.errors import ActorDead, ActorError, UnhandledMessage, format_error
from oubliette.kit.fair_loop import working_for
from oubliette.kit.mailbox import Envelope
from oubliette.kit.messages import (
    Down,
    Message,
    Reply,
    Stop,
    TaskFailed,
    handles,
    round_trip_answer,
)
from oubliette.kit.place import PlacedActor
from oubliette.kit.pykka_actor import StopFlag
from oubliette.kit.ref import ASK_TIMEOUT, Ref
from oubliette.kit.replies import Deferred
from oubliette.kit.shutdown import end_children
from oubliette.kit.timers import ActorTimer, AnswerToSelf, PipedTask, Sender
from oubliette.kit.trace_context import DetachedScope, current_scope

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable

    from oubliette.kit.loop_bridge import LoopBridge
    from oubliette.kit.messages import Reason
    from oubliette.kit.system import System

T = TypeVar("T")

log = structlog.get_logger("oubliette.kit")

_IDLE = Envelope(None)


class Actor(PlacedActor):
    """Object that handles one message at a time, in one task.

    Subclass it, mark handlers with `@handles(Kind)`, spawn it with `System.spawn` or `self.spawn`.
    `__init__` takes the arguments that `spawn` was given; the attributes and methods below are
    usable in it. Hooks and handlers may be `def` or `async def` and never run concurrently: while
    one awaits, the messages in the mailbox wait. Long waits therefore belong in a child or in a
    `pipe_to_self`.
    """

    mailbox_size: ClassVar[int] = 1000
    """Messages that may wait; more are refused (`tell`) or wait outside (`ask`, `send`)."""

    shutdown: ClassVar[float] = 5.0
    """Seconds that the actor has to end when its parent ends; then it is cancelled."""

    _actor_parent: Actor | None
    _actor_children: dict[str, Actor]
    _actor_handlers: ClassVar[dict[type, Any]] = {}
    _actor_at_once: ClassVar[frozenset[type]] = frozenset()

    @classmethod
    def _actor_collect_handlers(cls) -> None:
        names: dict[type, str] = {}
        for base in reversed(cls.__mro__):
            for name, attribute in vars(base).items():
                for kind in getattr(attribute, "_handles", ()):
                    names[kind] = name
        cls._actor_handlers = {kind: getattr(cls, name) for kind, name in names.items()}
        cls._actor_at_once = frozenset(
            kind
            for kind, handler in cls._actor_handlers.items()
            if getattr(handler, "_at_once", False)
        )

    def __init__(self) -> None:
        """Do nothing: `actor_bind` ran before, so a subclass need not call this."""

    def actor_bind(
        self, system: System, name: str, incarnation: int, parent: Actor | None, shutdown: float
    ) -> None:
        """Place the actor in `system`; the kit calls this before `__init__`."""
        if "_actor_handlers" not in type(self).__dict__:
            self._actor_collect_handlers()
        self.system = system
        self.clock = system.clock
        self.name = self.actor_urn = name
        self.incarnation = incarnation
        self.envelope = _IDLE
        self.actor_inbox = box = self._create_actor_inbox()
        box.limit = self.mailbox_size
        box.name, box.incarnation = name, incarnation
        box.undeliverable, box.codec = system, system.codec
        if self._actor_at_once:
            box.at_once, box.handle = self._actor_at_once, self._actor_handle_at_once
        box.bind(system.bridge)
        self.actor_stopped = cast("threading.Event", StopFlag())
        self.ref = Ref(system, name, box)
        self._actor_parent = parent
        self.actor_limit = shutdown
        self._actor_reason = "normal"
        self._actor_error = None
        self._actor_phase = "new"
        self._actor_context = context = system.context.copy()
        context.run(current_scope.set, self)
        if whose := working_for.get():
            context.run(working_for.set, whose)
        self._actor_children = _NONE
        self._actor_jobs = _NO_MEMBERS
        self._actor_timers = _NO_MEMBERS
        self._actor_deferrals = _NO_MEMBERS

    def actor_begin(self) -> None:
        """Start the task; the kit calls this after `__init__`."""
        self._start_actor_loop()

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name}"

    # ------------------------------------------------------------ hooks
    def on_start(self) -> Any:
        """Run before the first message; an error ends the actor as `failed`. May be async."""

    def on_exit(self, reason: Reason, error: BaseException | None) -> Any:
        """Run last, for every reason of the end, after the children and side tasks have ended.

        May be async. The mailbox is closed; deferred answers may still be set.
        """

    def on_unhandled(self, message: Message) -> Any:
        """Handle a message that no handler is marked for.

        A message that was sent with `tell` becomes a dead letter.

        Raises:
            UnhandledMessage: the message is an ask.
        """
        kind = type(message).__name__
        if self.envelope.reply_to is not None:
            raise UnhandledMessage(f"{self.name} ({type(self).__name__}) does not handle {kind}")
        self.system.keep_dead_letter(self.name, self.envelope, "no handler")

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way beside the mailbox: no job, and no deferred answer."""
        return not self._actor_jobs and not self._actor_deferrals

    # ------------------------------------------------------------ verbs
    def stop(self, reason: Reason = "normal") -> None:
        """End the actor after the current handler; the messages in the mailbox are refused."""
        self._actor_end(reason, None)

    def spawn(
        self,
        cls: type[Actor],
        *args: Any,
        name: str | None = None,
        shutdown: float | None = None,
        **kwargs: Any,
    ) -> Ref:
        """Start a child, which is stopped when this actor ends.

        Args:
            cls: its class.
            args: for its `__init__`, as are `kwargs`.
            name: its name in the System; generated if None.
            shutdown: seconds it has to end with this actor; the class's `shutdown` if None.
            kwargs: for its `__init__`.

        Raises:
            AlreadyExists: an actor of that name is alive.
            ActorDead: this actor is ending.
        """
        if self._actor_phase in {"ending", "gone"}:
            raise ActorDead(f"{self.name} is ending and can have no children")
        child = self.system.start(cls, args, kwargs, name, self, shutdown)
        if self._actor_children is _NONE:
            self._actor_children = {}
        self._actor_children[child.name] = child
        return child.ref

    def watch(self, ref: Ref) -> None:
        """Request exactly one `Down` for the end of the actor of `ref`; at once if it has ended."""
        if Down not in self._actor_handlers:
            raise ActorError(f"{type(self).__name__} watches, so it needs a handler for Down")
        ref.watch(self.actor_inbox)

    def unwatch(self, ref: Ref) -> None:
        """Cancel a watch; a `Down` that was already sent still arrives."""
        ref.unwatch(self.actor_inbox)

    def after(self, delay: float, message: Message) -> ActorTimer:
        """Send `message` to this actor in `delay` seconds, unless cancelled or ended before."""
        if self._actor_timers is _NO_MEMBERS:
            self._actor_timers = set()
        return ActorTimer(self._actor_timers, self.clock, delay, self._actor_own_sender(), message)

    def pipe_to_self(
        self,
        awaitable: Awaitable[T],
        ok: Callable[[T], Message],
        err: Callable[[BaseException], Message],
    ) -> PipedTask:
        """Await something beside the mailbox; its outcome comes as a message.

        Args:
            awaitable: what to wait for.
            ok: makes the message of its result.
            err: makes the message of its error, and of an error in `ok`. An error in `err` itself
                fails the actor.

        Returns:
            The task, which can be cancelled; it then sends nothing. It is cancelled with the actor.
        """
        if self._actor_phase in {"ending", "gone"}:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise ActorDead(f"{self.name} is ending and starts nothing more")
        if self._actor_jobs is _NO_MEMBERS:
            self._actor_jobs = set()
        scope = DetachedScope(self.name, Envelope(None, trace=self.envelope.trace))
        side = PipedTask(scope, self._actor_own_sender(), self._actor_post_broke)
        job = side.start(awaitable, ok, err)
        self._actor_jobs.add(job)
        job.add_done_callback(self._actor_jobs.discard)
        return side

    @overload
    def ask_to_self(
        self,
        ref: Ref,
        message: Reply[T],
        ok: Callable[[T], Message],
        err: Callable[[BaseException], Message],
        timeout: float = ASK_TIMEOUT,
    ) -> None: ...
    @overload
    def ask_to_self(
        self,
        ref: Ref,
        message: Message,
        ok: Callable[[Any], Message],
        err: Callable[[BaseException], Message],
        timeout: float = ASK_TIMEOUT,
    ) -> None: ...
    def ask_to_self(
        self,
        ref: Ref,
        message: Any,
        ok: Callable[[Any], Message],
        err: Callable[[BaseException], Message],
        timeout: float = ASK_TIMEOUT,
    ) -> None:
        """Ask another actor without waiting; the answer comes as a message.

        Same as `pipe_to_self(ref.ask(message), ok, err)`, without a task: one wake-up of the loop
        instead of three. No message comes once this actor has ended.

        Args:
            ref: the actor to ask.
            message: the request.
            ok: makes the message of the answer.
            err: makes the message of an error, of `AskTimeout` and `ActorDead`, and of an error in
                `ok`. An error in `err` itself fails the actor.
            timeout: seconds to wait for the answer.
        """
        if self._actor_timers is _NO_MEMBERS:
            self._actor_timers = set()
        kind = cast("type[Message]", type(message))

        def taken(answer: Any) -> Message:
            return ok(answer if self.system.codec is None else round_trip_answer(kind, answer))

        answer = AnswerToSelf(
            self.actor_inbox, taken, err, self._actor_own_sender(), self._actor_post_broke
        )
        try:
            deadline = self.clock.monotonic() + timeout
            ref.post(Envelope(message, answer, self.name, deadline, self.envelope.trace))
        except ActorDead as error:
            answer.set_error(error)
            return
        if not answer.done:  # an idle actor may have answered at once
            answer.within(
                ActorTimer(
                    self._actor_timers,
                    self.clock,
                    timeout,
                    lambda: answer.give_up(ref.late(kind, timeout)),
                )
            )

    def defer(self) -> Deferred:
        """Defer the answer to the ask being handled; the handler's return value is ignored.

        If the actor ends first, the asker gets `ActorDead`. A message sent with `tell` expects no
        answer: the result is done from the start.
        """
        envelope = self.envelope
        if envelope.deferred is not None:
            return envelope.deferred
        reply, envelope.reply_to = envelope.reply_to, None
        if self._actor_deferrals is _NO_MEMBERS:
            self._actor_deferrals = set()
        deferred = Deferred(reply, envelope.deadline, self._actor_deferrals.discard)
        envelope.deferred = deferred
        if not deferred.done:
            self._actor_deferrals.add(deferred)
        return deferred

    # ------------------------------------------------------------ Pykka's steps, our meaning
    def _actor_bridge(self) -> LoopBridge:
        return self.system.bridge

    def _actor_start_on(self, bridge: LoopBridge) -> None:
        context = self._actor_context
        self._actor_task = bridge.loop.create_task(self._actor_loop(), context=context)
        self._actor_task.add_done_callback(self._actor_task_done, context=context)

    async def _actor_set_up(self) -> None:
        if self._actor_phase != "new":  # cancelled before it began
            return
        self._actor_phase = "running"
        try:
            done = self.on_start()
            if type(done) is CoroutineType:
                await done
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._actor_task.cancelling():
                raise
            self._actor_failed(error, "on_start")

    def _actor_receive(self, envelope: Envelope) -> Any:
        self.envelope = envelope
        message = envelope.message
        kind = message.__class__
        handler = self._actor_handlers.get(kind)
        if handler is None:
            handler = self._actor_find_handler(kind)
        return handler(self, message)

    def _actor_find_handler(self, kind: type) -> Any:
        for base in kind.__mro__:
            handler = self._actor_handlers.get(base)
            if handler is not None:
                self._actor_handlers[kind] = handler
                return handler
        return type(self).on_unhandled

    def _actor_handle_at_once(self, envelope: Envelope) -> bool:
        """Handle a message in its sender's call; return whether it ends the actor. Never raises."""
        self._actor_context.run(self._actor_receive_at_once, envelope)
        return cast("StopFlag", self.actor_stopped).flag

    def _actor_receive_at_once(self, envelope: Envelope) -> None:
        try:
            answer = self._actor_receive(envelope)
            reply = envelope.reply_to
            if reply is not None:
                reply.set(answer)
        except BaseException as error:
            if isinstance(error, Exception):
                self._actor_not_handled(envelope, error)
            else:
                self._actor_refuse(envelope)
                self._actor_failed(error, type(envelope.message).__name__)

    async def _actor_receive_failed(self, envelope: Envelope, error: BaseException) -> None:
        self._actor_not_handled(envelope, error)

    def _actor_not_handled(self, envelope: Envelope, error: BaseException) -> None:
        reply, deferred = envelope.reply_to, envelope.deferred
        kind = type(envelope.message).__name__
        if reply is not None and not reply.done:
            reply.set_exception((type(error), error, error.__traceback__))
        elif reply is None and (deferred is None or not deferred.asked):
            self._actor_failed(error, kind)
        elif deferred is None or not deferred.set_error(error):
            # It was an ask, so the actor continues; but the asker no longer waits for the error.
            log.error(
                "ask failed unheard", actor=self.name, kind=kind, traceback=format_error(error)
            )

    async def _actor_receive_broke(self, envelope: Envelope, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            # The awaited operation was cancelled, not the actor: a failure like any other.
            wrapped = ActorError(f"{self.name}: what its handler awaited was cancelled")
            wrapped.__cause__ = error
            await self._actor_receive_failed(envelope, wrapped)
            return
        self._actor_refuse(envelope)
        self._actor_failed(error, type(envelope.message).__name__)

    def _actor_refuse(self, envelope: Envelope) -> None:
        # The handling of a `tell` had begun, so it is no dead letter; `Down` reports its end.
        if envelope.reply_to is not None:
            self.actor_inbox.reject(envelope)

    def _actor_was_cancelled(self) -> None:
        self._actor_end("killed", None)

    @handles(Stop)
    def _actor_handle_stop(self, signal: Stop) -> None:
        self._actor_end(signal.reason, None)

    @handles(TaskFailed)
    def _actor_handle_broke(self, signal: TaskFailed) -> None:
        self._actor_failed(signal.error, "pipe_to_self")

    def _actor_failed(self, error: BaseException, doing: str) -> None:
        log.error("actor failed", actor=self.name, doing=doing, traceback=format_error(error))
        self._actor_end("failed", error)

    def _actor_end(self, reason: Reason, error: BaseException | None) -> None:
        # The first reason counts, except that an error during the end replaces it.
        if not self.actor_stopped.is_set() or (error is not None and self._actor_error is None):
            self._actor_reason, self._actor_error = reason, error
            if error is not None:
                self.system.note_failure(self.name, error)
        self.actor_stopped.set()

    # ------------------------------------------------------------ the end
    def actor_cancel(self) -> None:
        """Cancel the current activity; `on_exit` runs, unless that is the one cancelled."""
        if self._actor_phase == "new":
            self._actor_phase = "cancelled"
            self._actor_end("killed", None)
        elif self._actor_phase != "gone":
            if self._actor_phase == "ending":
                self._actor_reason = "killed"
            self._actor_task.cancel()

    def actor_abandon(self) -> None:
        """Report the actor as ended although its task does not end."""
        if self._actor_phase != "gone":
            log.error("actor does not end, and is given up", actor=self.name)
            self._actor_reason = "killed"
            self._actor_gone()

    async def _actor_tear_down(self) -> None:
        self._actor_phase = "ending"
        self.envelope = _IDLE
        try:
            self.actor_inbox.close()
            for job in self._actor_jobs:
                job.cancel()
            try:
                if self._actor_children:
                    await end_children(
                        self._actor_children, self.clock, now=self._actor_reason == "killed"
                    )
                if self._actor_jobs:
                    _, left = await asyncio.wait(self._actor_jobs, timeout=self.shutdown)
                    if left:
                        log.error("side tasks do not end", actor=self.name, tasks=len(left))
            except asyncio.CancelledError:
                for child in list(self._actor_children.values()):
                    child.actor_cancel()
            await self._actor_run_on_exit()
        finally:
            self._actor_gone()
        if isinstance(self._actor_error, KeyboardInterrupt):
            raise self._actor_error  # it was meant for the program

    async def _actor_run_on_exit(self) -> None:
        try:
            done = self.on_exit(self._actor_reason, self._actor_error)
            if type(done) is CoroutineType:
                await done
        except asyncio.CancelledError:
            self._actor_reason = "killed"
        except GeneratorExit:
            raise
        except BaseException as error:
            self._actor_failed(error, "on_exit")

    def _actor_gone(self) -> None:
        if self._actor_phase == "gone":
            return
        self._actor_phase = "gone"
        self.actor_stopped.set()
        box = self.actor_inbox
        box.close()
        box.handle = None  # holders of a ref must not keep the actor alive
        for timer in list(self._actor_timers):
            timer.cancel()
        for deferred in list(self._actor_deferrals):
            deferred.set_error(self.system.dead(self.name, "it ended before it answered"))
        if self._actor_parent is not None:
            self._actor_parent._actor_children.pop(self.name, None)
        self.system.forget(self)
        error = self._actor_error
        text = None if error is None else f"{type(error).__name__}: {error}"
        box.announce(
            Down(
                name=self.name, reason=self._actor_reason, error=text, incarnation=self.incarnation
            )
        )

    def _actor_task_done(self, task: asyncio.Task[None]) -> None:
        # Reached by a task that was cancelled from outside before its first step.
        if self._actor_phase != "gone":
            self._actor_end("killed", None)
            self._actor_gone()
        error = None if task.cancelled() else task.exception()
        if error is not None and error is not self._actor_error:
            log.error("actor's task broke", actor=self.name, traceback=format_error(error))

    def _actor_post_broke(self, error: BaseException) -> None:
        self.actor_inbox.post(Envelope(TaskFailed(error)), urgent=True)

    def _actor_own_sender(self) -> Sender:
        """Return a sender of messages to this actor, with the current trace."""
        return Sender(self.actor_inbox, self.name, self.envelope.trace)


# Shared by all actors that have none; never written to (most actors have none, and 10 000 actors
# would have 40 000 empty sets).
_NONE: dict[str, Actor] = {}
_NO_MEMBERS: set[Any] = set()
