"""System: one loop, the actors on it, their names, and their shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast

import structlog

from oubliette.clock import SystemClock
from oubliette.errors import AlreadyExists
from oubliette.kit.errors import ActorDead, WouldBlockError, reason_of
from oubliette.kit.loop_bridge import LoopBridge, LoopThread
from oubliette.kit.messages import DeadLetter, Down, Perishable, Signal, round_trip
from oubliette.kit.pykka_future import on_a_loop
from oubliette.kit.ref import Ref
from oubliette.kit.shutdown import RunningActor, end_actor
from oubliette.kit.wait_graph import WaitGraph
from oubliette.kit.watchdog import LIMIT, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import TracebackType
    from typing import Self

    from oubliette.clock import Clock
    from oubliette.kit.mailbox import Envelope, Mailbox
    from oubliette.kit.messages import Message
    from oubliette.kit.trace_context import TraceScope
    from oubliette.kit.watchdog import Blocked

T = TypeVar("T")
A = TypeVar("A", bound="SystemActor")

log = structlog.get_logger("oubliette.kit")

DEAD_LETTERS: Final = 1000
"""Dead letters that are kept; older ones are dropped."""
FAILURES: Final = 1000
"""Names of which the latest failure is known; older ones are dropped."""

_incarnations = itertools.count(1)


class SystemActor(RunningActor, Protocol):
    """The actor type that a System starts: an `Actor`, which has a reference to its System."""

    shutdown: ClassVar[float]

    @property
    def system(self) -> System:
        """The System that it runs on."""
        ...

    @property
    def ref(self) -> Ref:
        """Its address for other actors."""
        ...

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def actor_bind(
        self, system: System, name: str, incarnation: int, parent: Any, shutdown: float
    ) -> None:
        """Place the actor in `system`, before `__init__`."""
        ...

    def actor_begin(self) -> None:
        """Start the actor's task, after `__init__`."""
        ...


class OtherNodes(Protocol):
    """The nodes that a System is connected to (`oubliette.kit.remote.connect`)."""

    def ref(self, name: str) -> Ref:
        """Return the ref of `NODE!name`."""
        ...

    async def close(self) -> None:
        """End the connection, and with it every wait for another node."""
        ...


class System:
    """Owner of a loop's actors; entered with `async with System() as system` on that loop.

    Args:
        name: for logs.
        clock: time for deadlines and timers.
        roundtrip_messages: encode and decode every message and declared answer, for tests.
        watchdog: seconds for which a handler may block the loop before a warning; None: no warning.
    """

    def __init__(
        self,
        name: str = "oubliette",
        clock: Clock | None = None,
        *,
        roundtrip_messages: bool = False,
        watchdog: float | None = LIMIT,
    ) -> None:
        self.name = name
        self.clock: Clock = clock or SystemClock()
        self.codec: Callable[[Message], Message] | None = round_trip if roundtrip_messages else None
        self.dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS)
        self.dead_letter_count = 0
        self.waits = WaitGraph()
        self.bridge: LoopBridge
        self.context: contextvars.Context
        self._failures: dict[str, str] = {}
        """Reason of the latest failure, by the names of actors that have not run since."""
        self._live: dict[str, SystemActor] = {}
        self._top: dict[str, SystemActor] = {}
        self._open = False
        self._watchdog_limit = watchdog
        self._watchdog: Watchdog | None = None
        self.nodes: OtherNodes | None = None
        """The other nodes; None unless this System is connected to any."""

    # ------------------------------------------------------------ life
    async def __aenter__(self) -> Self:
        self.bridge = LoopBridge()
        self.context = contextvars.copy_context()
        self._open = True
        if self._watchdog_limit is not None:
            self._watchdog = Watchdog(self.bridge, self.name, self._watchdog_limit)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End every actor, the last started first, each within its limit; then start no more."""
        self._open = False
        loop = self.bridge.loop
        try:
            while self._top:
                actor = self._top[next(reversed(self._top))]
                await end_actor(actor, actor.actor_limit, loop.call_later)
                self._top.pop(actor.name, None)
            for actor in list(self._live.values()):  # orphans of an exit that was cancelled
                await end_actor(actor, 0, loop.call_later)
            if self.nodes is not None:
                await self.nodes.close()
        finally:
            for actor in list(self._live.values()):
                actor.actor_cancel()
            if self._watchdog is not None:
                self._watchdog.stop()
            self.bridge.close()

    @classmethod
    @contextlib.contextmanager
    def in_thread(
        cls,
        name: str = "oubliette",
        clock: Clock | None = None,
        *,
        roundtrip_messages: bool = False,
    ) -> Generator[Self]:
        """Run a System on a loop in a thread of its own, for programs without one.

        There `spawn`, `Ref.tell`, `Ref.ask_blocking` and `Ref.stop_blocking` may be called from
        any thread that runs no loop.
        """
        system = cls(name, clock, roundtrip_messages=roundtrip_messages)
        thread = LoopThread(f"{name}-actors")
        try:
            asyncio.run_coroutine_threadsafe(system.__aenter__(), thread.loop).result(30)
            try:
                yield system
            finally:
                asyncio.run_coroutine_threadsafe(system.stop(), thread.loop).result(60)
        finally:
            thread.stop()

    def run_blocking(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the System's loop from a thread, for at most `timeout` seconds."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.bridge.loop).result(timeout)

    # ------------------------------------------------------------ actors
    def spawn(
        self,
        cls: type[SystemActor],
        *args: Any,
        name: str | None = None,
        shutdown: float | None = None,
        **kwargs: Any,
    ) -> Ref:
        """Start an actor at the top of the tree.

        Args:
            cls: its class.
            args: for its `__init__`, as are `kwargs`.
            name: its name in the System; generated if None.
            shutdown: seconds it has to end with the System; the class's `shutdown` if None.
            kwargs: for its `__init__`.

        Raises:
            AlreadyExists: an actor of that name is alive.
            ActorDead: the System is ending.
            WouldBlockError: called on the loop of another System.
        """
        if threading.get_ident() == self.bridge.thread:
            return self._spawn_top(cls, args, kwargs, name, shutdown)
        if on_a_loop():
            raise WouldBlockError(f"{self.name}: spawn on its own loop, or from a plain thread")

        async def spawn() -> Ref:
            return self._spawn_top(cls, args, kwargs, name, shutdown)

        return self.run_blocking(spawn(), 30)

    def lookup(self, name: str) -> Ref | None:
        """Return the ref of a live actor, None if there is none of that name."""
        actor = self._live.get(name)
        return None if actor is None or actor.actor_inbox.closed else actor.ref

    def ref(self, name: str) -> Ref:
        """Return the ref of a name, whether or not such an actor is alive now.

        On a System that is connected to other nodes, `NODE!name` is the actor of that node.
        """
        actor = self._live.get(name)
        if actor is not None:
            return actor.ref
        if self.nodes is not None and "!" in name:
            return self.nodes.ref(name)
        return Ref(self, name)

    @property
    def names(self) -> dict[str, Ref]:
        """Names and refs of the actors that are alive."""
        return {name: actor.ref for name, actor in list(self._live.items())}

    @property
    def actor_count(self) -> int:
        """Number of live actors."""
        return len(self._live)

    @property
    def blocked(self) -> tuple[Blocked, ...]:
        """The last hundred times that a handler blocked the loop, oldest first."""
        return () if self._watchdog is None else tuple(self._watchdog.blocked)

    # ------------------------------------------------------------ for the kit itself
    def actor(self, name: str) -> SystemActor | None:
        """Return the live actor of that name."""
        return self._live.get(name)

    def start(  # noqa: PLR0917
        self,
        cls: type[A],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        parent: RunningActor | None,
        shutdown: float | None,
    ) -> A:
        """Make an actor and start its task; see `spawn`."""
        incarnation = next(_incarnations)
        if name is None:
            name = f"{cls.__name__}-{incarnation}"
            if parent is not None:
                name = f"{parent.name}/{name}"
        if name in self._live:
            raise AlreadyExists(f"An actor named {name} is alive")
        actor = cls.__new__(cls)
        limit = cls.shutdown if shutdown is None else shutdown
        actor.actor_bind(self, name, incarnation, parent, limit)
        actor.__init__(*args, **kwargs)
        if name in self._live:
            raise AlreadyExists(f"An actor named {name} was started by its own constructor")
        self._live[name] = actor
        self._failures.pop(name, None)
        actor.actor_begin()
        return actor

    def note_failure(self, name: str, error: BaseException) -> None:
        """Keep the reason for those who ask the actor `name` from now on."""
        self._failures.pop(name, None)
        self._failures[name] = reason_of(error)
        if len(self._failures) > FAILURES:
            del self._failures[next(iter(self._failures))]

    def dead(self, name: str, what: str = "there is no such actor, or it has ended") -> ActorDead:
        """Return the error of an ask that the actor `name` does not answer."""
        reason = self._failures.get(name)
        return ActorDead(f"{name}: {what}" + (f": {reason}" if reason else ""), reason=reason)

    def forget(self, actor: RunningActor) -> None:
        """Remove an ended actor from the names."""
        if self._live.get(actor.name) is actor:
            del self._live[actor.name]
        if self._top.get(actor.name) is actor:
            del self._top[actor.name]

    def waiting_actor(self, scope: TraceScope) -> Mailbox | None:
        """Return the mailbox that is blocked while the current task waits, if there is one.

        That is so in an actor's own task; side tasks do not block its mailbox.
        """
        actor = cast("SystemActor", scope)
        task = getattr(actor, "_actor_task", None)
        if task is None or task is not asyncio.current_task() or actor.system is not self:
            return None
        return actor.actor_inbox

    def rejected(self, box: Mailbox, envelope: Envelope) -> None:
        """Answer a message for an actor that has ended, or keep it as a dead letter."""
        for waits in (envelope.reply_to, envelope.receipt):
            if waits is not None:
                error = self.dead(box.name, "it ended before it answered")
                waits.set_exception((ActorDead, error, None))
                return
        if envelope.sender == box.name:  # its own timers and outcomes end with it
            return
        self.keep_dead_letter(box.name, envelope, "the actor has ended")

    def keep_dead_letter(self, name: str, envelope: Envelope, why: str) -> None:
        """Keep a message that no actor will handle as a dead letter, and log it."""
        message = envelope.message
        if isinstance(message, (Signal, Down, Perishable)):
            return
        self.dead_letter_count += 1
        self.dead_letters.append(
            DeadLetter(
                to=name, sender=envelope.sender, message=message, why=why, at=self.clock.time()
            )
        )
        log.warning(
            "dead letter", to=name, sender=envelope.sender, kind=type(message).__name__, why=why
        )

    def _spawn_top(
        self,
        cls: type[SystemActor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        shutdown: float | None,
    ) -> Ref:
        if not self._open:
            raise ActorDead(f"{self.name} is ending, or was not entered")
        actor = self.start(cls, args, kwargs, name, None, shutdown)
        self._top[actor.name] = actor
        return actor.ref
