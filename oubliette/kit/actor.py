"""The actor that everybody subclasses: handlers, children, watches, timers, side tasks."""

from __future__ import annotations

import asyncio
import inspect
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import structlog

from oubliette.kit.aside import SideTask, Timer
from oubliette.kit.errors import ActorDead, ActorError, UnhandledMessage
from oubliette.kit.mailbox import Envelope
from oubliette.kit.messages import Down, Message, handles
from oubliette.kit.pykka_runtime import AsyncioActor, StopFlag
from oubliette.kit.ref import Ref
from oubliette.kit.replies import Deferred
from oubliette.kit.scope import Aside, current_scope
from oubliette.kit.signals import Broke, Stop
from oubliette.kit.teardown import end_children
from oubliette.kit.written import written

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable

    from oubliette.clock import Clock
    from oubliette.kit.gate import Gate
    from oubliette.kit.messages import Reason
    from oubliette.kit.system import System

T = TypeVar("T")
Handler = "Callable[[Any, Any], Any]"

log = structlog.get_logger("oubliette.kit")

_IDLE = Envelope(None)


class Actor(AsyncioActor):
    """One thing that happens at a time, in one task, on messages only.

    Subclass it, mark handlers with `@handles(Kind)`, spawn it with `System.spawn` or
    `self.spawn`. `__init__` takes what `spawn` was given; everything below is there already when
    it runs. Hooks and handlers may be `def` or `async def` and are never run side by side: while
    one awaits, the mailbox waits. So whatever waits long is a child or a `pipe_to_self`.
    """

    mailbox_size: ClassVar[int] = 1000
    """Messages that may wait; more are refused (`tell`) or wait outside (`ask`, `send`)."""

    shutdown: ClassVar[float] = 5.0
    """Seconds it has to end when its parent ends; then it is cancelled."""

    _handlers: ClassVar[dict[type, Any]] = {}
    _task: asyncio.Task[None]

    system: System
    name: str
    ref: Ref
    clock: Clock
    incarnation: int
    """Which life this is: no two actors of a process have the same."""

    envelope: Envelope
    """What is being handled: sender, deadline, trace."""

    @classmethod
    def _collect_handlers(cls) -> None:
        names: dict[type, str] = {}
        for base in reversed(cls.__mro__):
            for name, attribute in vars(base).items():
                for kind in getattr(attribute, "_handles", ()):
                    names[kind] = name
        cls._handlers = {kind: getattr(cls, name) for kind, name in names.items()}

    def __init__(self) -> None:
        """Nothing: `bind_to` has done it before, so that forgetting to call this harms nothing."""

    def bind_to(
        self, system: System, name: str, incarnation: int, parent: Actor | None, shutdown: float
    ) -> None:
        """Take a place in `system`; the kit calls it before `__init__`."""
        if "_handlers" not in type(self).__dict__:
            self._collect_handlers()
        self.system = system
        self.clock = system.clock
        self.name = self.actor_urn = name
        self.incarnation = incarnation
        self.envelope = _IDLE
        self.actor_inbox = box = self._create_actor_inbox()
        box.limit = self.mailbox_size
        box.name, box.incarnation = name, incarnation
        box.court, box.codec = system, system.codec
        box.bind(system.gate)
        self.actor_stopped = cast("threading.Event", StopFlag())
        self.ref = Ref(system, name, box)
        self._parent = parent
        self.limit_to_end = shutdown
        self._reason: Reason = "normal"
        self._error: BaseException | None = None
        self._phase = "new"
        self._context = context = system.context.copy()
        context.run(current_scope.set, self)
        self._children: dict[str, Actor] = _NONE
        self._jobs: set[asyncio.Task[None]] = _NOBODY
        self._timers: set[Timer] = _NOBODY
        self._deferrals: set[Deferred] = _NOBODY

    def begin(self) -> None:
        """Start the task; the kit calls it after `__init__`."""
        self._start_actor_loop()

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name}"

    # ------------------------------------------------------------ hooks
    def on_start(self) -> Any:
        """Run before the first message; an error ends the actor as `failed`. May be async."""

    def on_exit(self, reason: Reason, error: BaseException | None) -> Any:
        """Run last, whatever ended the actor, after its children and side tasks are gone.

        May be async. The mailbox is closed; deferred answers may still be set.
        """

    def on_unhandled(self, message: Message) -> Any:
        """Take a message that no handler is marked for.

        Raises:
            UnhandledMessage: it is an ask. A tell becomes a dead letter.
        """
        kind = type(message).__name__
        if self.envelope.reply_to is not None:
            raise UnhandledMessage(f"{self.name} ({type(self).__name__}) does not handle {kind}")
        self.system.bury(self.name, self.envelope, "no handler")

    # ------------------------------------------------------------ verbs
    def stop(self, reason: Reason = "normal") -> None:
        """End after the current handler; what waits in the mailbox is refused."""
        self._end(reason, None)

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
            name: its name in the System; made up if None.
            shutdown: seconds it has to end with this actor; its class says if None.
            kwargs: for its `__init__`.

        Raises:
            AlreadyExists: an actor of that name is alive.
            ActorDead: this actor is ending.
        """
        if self._phase in {"ending", "gone"}:
            raise ActorDead(f"{self.name} is ending and can have no children")
        child = self.system.start(cls, args, kwargs, name, self, shutdown)
        if self._children is _NONE:
            self._children = {}
        self._children[child.name] = child
        return child.ref

    def watch(self, ref: Ref) -> None:
        """Get exactly one `Down` when the actor of `ref` ends; at once if there is none."""
        if Down not in self._handlers:
            raise ActorError(f"{type(self).__name__} watches, so it needs a handler for Down")
        target = ref.resolve()
        if target is None:
            self.actor_inbox.deliver(Down(name=ref.name, reason="noproc"))
        else:
            target.actor_inbox.watch(self.actor_inbox)

    def unwatch(self, ref: Ref) -> None:
        """Take a watch back; a `Down` that is on its way still comes."""
        target = ref.resolve()
        if target is not None:
            target.actor_inbox.unwatch(self.actor_inbox)

    def after(self, delay: float, message: Message) -> Timer:
        """Get `message` in `delay` seconds, unless cancelled or ended before."""
        if self._timers is _NOBODY:
            self._timers = set()
        send = self._own_sender()
        return Timer(self._timers, self.clock, delay, lambda: send(message))

    def pipe_to_self(
        self,
        awaitable: Awaitable[T],
        ok: Callable[[T], Message],
        err: Callable[[BaseException], Message],
    ) -> SideTask:
        """Await something beside the mailbox; its outcome comes as a message.

        Args:
            awaitable: what to wait for.
            ok: makes the message of its result.
            err: makes the message of its error, and of an error in `ok`. An error in `err`
                itself fails the actor.

        Returns:
            What cancels it; a cancelled one sends nothing. It is cancelled with the actor.
        """
        if self._phase in {"ending", "gone"}:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise ActorDead(f"{self.name} is ending and starts nothing more")
        if self._jobs is _NOBODY:
            self._jobs = set()
        scope = Aside(self.name, Envelope(None, trace=self.envelope.trace))
        side = SideTask(scope, self._own_sender(), self._post_broke)
        job = side.start(awaitable, ok, err)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return side

    def defer(self) -> Deferred:
        """Take over the answer to the ask being handled; what the handler returns is ignored.

        If the actor ends first, the asker gets `ActorDead`. For a tell there is nobody to
        answer: the result is done from the start.
        """
        envelope = self.envelope
        if envelope.deferred is not None:
            return envelope.deferred
        reply, envelope.reply_to = envelope.reply_to, None
        if self._deferrals is _NOBODY:
            self._deferrals = set()
        deferred = Deferred(reply, envelope.deadline, self._deferrals.discard)
        envelope.deferred = deferred
        if not deferred.done:
            self._deferrals.add(deferred)
        return deferred

    # ------------------------------------------------------------ Pykka's steps, our meaning
    def _gate(self) -> Gate:
        return self.system.gate

    def _start_on(self, gate: Gate) -> None:
        context = self._context
        self._task = gate.loop.create_task(self._actor_loop(), context=context)
        self._task.add_done_callback(self._task_done, context=context)

    async def _set_up(self) -> None:
        if self._phase != "new":  # cancelled before it began
            return
        self._phase = "running"
        try:
            done = self.on_start()
            if type(done) is CoroutineType:
                await done
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._task.cancelling():
                raise
            self._failed(error, "on_start")

    def _receive(self, envelope: Envelope) -> Any:
        self.envelope = envelope
        message = envelope.message
        kind = message.__class__
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._find_handler(kind)
        return handler(self, message)

    def _find_handler(self, kind: type) -> Any:
        for base in kind.__mro__:
            handler = self._handlers.get(base)
            if handler is not None:
                self._handlers[kind] = handler
                return handler
        return type(self).on_unhandled

    async def _receive_failed(self, envelope: Envelope, error: BaseException) -> None:
        reply, deferred = envelope.reply_to, envelope.deferred
        if reply is not None:
            reply.set_exception((type(error), error, error.__traceback__))
        elif deferred is None or not deferred.set_error(error):
            self._failed(error, type(envelope.message).__name__)

    async def _receive_broke(self, envelope: Envelope, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            # Somebody cancelled what the handler awaited, not the actor: a failure like others.
            wrapped = ActorError(f"{self.name}: what its handler awaited was cancelled")
            wrapped.__cause__ = error
            await self._receive_failed(envelope, wrapped)
            return
        self._refuse(envelope)
        self._failed(error, type(envelope.message).__name__)

    def _refuse(self, envelope: Envelope) -> None:
        # A tell in hand was begun, so it is no dead letter; `Down` says what became of it.
        if envelope.reply_to is not None:
            self.actor_inbox.reject(envelope)

    def _was_cancelled(self) -> None:
        self._end("killed", None)

    @handles(Stop)
    def _handle_stop(self, signal: Stop) -> None:
        self._end(signal.reason, None)

    @handles(Broke)
    def _handle_broke(self, signal: Broke) -> None:
        self._failed(signal.error, "pipe_to_self")

    def _failed(self, error: BaseException, doing: str) -> None:
        log.error("actor failed", actor=self.name, doing=doing, traceback=written(error))
        self._end("failed", error)

    def _end(self, reason: Reason, error: BaseException | None) -> None:
        # The first reason counts, but for an error that comes while it ends.
        if not self.actor_stopped.is_set() or (error is not None and self._error is None):
            self._reason, self._error = reason, error
        self.actor_stopped.set()

    # ------------------------------------------------------------ the end
    def cancel(self) -> None:
        """Cancel what it is doing; `on_exit` runs, unless this is what is cancelled."""
        if self._phase == "new":
            self._phase = "cancelled"
            self._end("killed", None)
        elif self._phase != "gone":
            if self._phase == "ending":
                self._reason = "killed"
            self._task.cancel()

    def abandon(self) -> None:
        """Count it as gone although its task would not end, and say so."""
        if self._phase != "gone":
            log.error("actor does not end, and is given up", actor=self.name)
            self._reason = "killed"
            self._gone()

    async def _tear_down(self) -> None:
        self._phase = "ending"
        self.envelope = _IDLE
        try:
            self.actor_inbox.close()
            for job in self._jobs:
                job.cancel()
            try:
                if self._children:
                    await end_children(self._children, self.clock, now=self._reason == "killed")
                if self._jobs:
                    await asyncio.wait(self._jobs, timeout=self.shutdown)
            except asyncio.CancelledError:
                for child in list(self._children.values()):
                    child.cancel()
            await self._run_on_exit()
        finally:
            self._gone()
        if isinstance(self._error, KeyboardInterrupt):
            raise self._error  # it was meant for the program

    async def _run_on_exit(self) -> None:
        try:
            done = self.on_exit(self._reason, self._error)
            if type(done) is CoroutineType:
                await done
        except asyncio.CancelledError:
            self._reason = "killed"
        except GeneratorExit:
            raise
        except BaseException as error:
            self._failed(error, "on_exit")

    def _gone(self) -> None:
        if self._phase == "gone":
            return
        self._phase = "gone"
        self.actor_stopped.set()
        box = self.actor_inbox
        box.close()
        for timer in list(self._timers):
            timer.cancel()
        for deferred in list(self._deferrals):
            deferred.set_error(ActorDead(f"{self.name} ended before it answered"))
        if self._parent is not None:
            self._parent._children.pop(self.name, None)
        self.system.forget(self)
        error = self._error
        text = None if error is None else f"{type(error).__name__}: {error}"
        box.announce(
            Down(name=self.name, reason=self._reason, error=text, incarnation=self.incarnation)
        )

    def _task_done(self, task: asyncio.Task[None]) -> None:
        # The way out for a task that was cancelled from outside before its first step.
        if self._phase != "gone":
            self._end("killed", None)
            self._gone()
        error = None if task.cancelled() else task.exception()
        if error is not None and error is not self._error:
            log.error("actor's task broke", actor=self.name, traceback=written(error))

    def _post_broke(self, error: BaseException) -> None:
        self.actor_inbox.post(Envelope(Broke(error)), urgent=True)

    def _own_sender(self) -> Callable[[Message], None]:
        """A function that sends messages to this actor, with the trace of this moment."""
        box, name, trace = self.actor_inbox, self.name, self.envelope.trace

        def send(message: Message) -> None:
            if not box.closed:
                if box.codec is not None:
                    message = box.codec(message)
                box.post(Envelope(message, None, name, None, trace), urgent=True)

        return send


# Shared by all actors that have none; never written to (most actors have none, and 10 000 actors
# would have 40 000 empty sets).
_NONE: dict[str, Actor] = {}
_NOBODY: set[Any] = set()
