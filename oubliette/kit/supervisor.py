"""Supervisors: actors that start children, and restart them when they fail."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import structlog

from oubliette.errors import AlreadyExists
from oubliette.kit.actor import Actor
from oubliette.kit.errors import DeadlockError, RestartIntensity, format_error
from oubliette.kit.mailbox import Envelope
from oubliette.kit.messages import Down, LocalMessage, Message, Reply, handles
from oubliette.kit.retry import BACKOFF, Backoff, backoff_delay
from oubliette.kit.shutdown import RunningActor, end_actor

if TYPE_CHECKING:
    from oubliette.kit.timers import ActorTimer

log = structlog.get_logger("oubliette.kit")

Restart = Literal["permanent", "transient", "temporary"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one child: how it is started, and whether it is restarted."""

    name: str
    """Its name under the supervisor; in the System it is `<supervisor>/<name>`."""

    cls: type[Actor]
    """Its class."""

    known_as: str | None = None
    """Its name in the System, where that is not derived from the name under the supervisor."""

    args: tuple[Any, ...] = ()
    """Positional arguments of its `__init__`."""

    kwargs: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Keyword arguments of its `__init__`."""

    restart: Restart = "permanent"
    """`permanent`: always again. `transient`: only after a failure. `temporary`: never."""

    shutdown: float | None = None
    """Seconds it has to end after a stop; then it is cancelled. None: the class's `shutdown` (5, a
    supervisor 60).
    """


class StartChild(LocalMessage, Reply[str]):
    """Request to start one more child. Answers its name in the System."""

    spec: ChildSpec
    """Its description; the name must be free."""


class StopChild(Message, Reply[bool]):
    """Request to end a child and forget its spec. Answers whether there was one."""

    name: str
    """Its name under the supervisor."""


class WhichChildren(Message, Reply[dict[str, int]]):
    """Request for the live children: name under the supervisor to incarnation, in start order."""


class _Unstarted(LocalMessage):
    """Notice that the constructor of a child failed at a restart."""

    name: str
    """Its name under the supervisor."""

    error: str
    """Type and text of what its constructor raised."""


class _Again(LocalMessage):
    """Notice that a backoff is over."""

    wait: int
    """Number of the backoff."""


class Supervisor(Actor):
    """Actor that starts its children in order, and restarts them when they fail.

    Args:
        children: started in this order, stopped in the reverse.
        strategy: the children that are restarted with a failed one: it alone, all, or it and those
            that were started after it.
        max_restarts: this many restarts are allowed `within` seconds; one more, and the supervisor
            ends its children and fails itself with `RestartIntensity`.
        within: seconds.
        backoff: a tenacity wait object: seconds to wait before the restart after the n-th failure
            in a row of a child. A child that lived for `within` seconds begins at one again.
    """

    shutdown: ClassVar[float] = 60.0
    """Seconds; the children have their own limits, one after the other."""

    def __init__(
        self,
        children: list[ChildSpec],
        strategy: Strategy = "one_for_one",
        max_restarts: int = 3,
        within: float = 5.0,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__()
        self._specs: dict[str, ChildSpec] = {}
        for spec in children:
            if spec.name in self._specs:
                raise AlreadyExists(f"Two children are named {spec.name}")
            self._specs[spec.name] = spec
        self._strategy: Strategy = strategy
        self._max_restarts = max_restarts
        self._within = within
        self._backoff = backoff
        self._kids: dict[str, RunningActor] = {}
        self._started_at: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._restarts: deque[float] = deque()
        self._waiting: dict[str, int] = {}
        """Children that wait for their backoff, with the number of the backoff."""
        self._backoffs: dict[int, ActorTimer] = {}
        self._numbers = itertools.count()

    def on_start(self) -> None:
        """Start the children that the spec names, in order."""
        for name in list(self._specs):
            self._start(name)

    def on_forgotten(self, name: str) -> None:
        """Run when a child has ended for the last time: it is not restarted, its name is free.

        Not run for the children that end with the supervisor.
        """

    # ------------------------------------------------------------ messages
    @handles(StartChild)
    def _start_child(self, message: StartChild) -> str:
        spec = message.spec
        if spec.name in self._specs:
            raise AlreadyExists(f"{self.name} has a child named {spec.name}")
        self._specs[spec.name] = spec
        try:
            return self._start(spec.name).name
        except Exception:
            self._forget(spec.name)
            raise

    @handles(StopChild)
    async def _stop_child(self, message: StopChild) -> bool:
        if message.name not in self._specs:
            return False
        await self._halt([message.name])
        self._forget(message.name)
        return True

    @handles(WhichChildren)
    def _which_children(self, _: WhichChildren) -> dict[str, int]:
        return {name: self._kids[name].incarnation for name in self._specs if name in self._kids}

    @handles(Down)
    async def _child_down(self, down: Down) -> None:
        name = self._whose(down)
        if name is None:
            return  # an incarnation that the supervisor itself ended
        del self._kids[name]
        spec = self._specs[name]
        if spec.restart == "temporary" or (
            spec.restart == "transient" and down.reason in {"normal", "shutdown"}
        ):
            self._forget(name)
            return
        await self._mend(name, f"{down.reason}: {down.error}" if down.error else down.reason)

    @handles(_Unstarted)
    async def _child_unstarted(self, message: _Unstarted) -> None:
        if message.name in self._specs and message.name not in self._kids:
            await self._mend(message.name, f"not started: {message.error}")

    async def _mend(self, name: str, why: str) -> None:
        lived = self.clock.monotonic() - self._started_at[name]
        self._failures[name] = 1 if lived >= self._within else self._failures.get(name, 0) + 1
        if not self._may_restart(name, why):
            self._forget(name)
            return
        group = self._group(name)
        await self._halt(group)
        for member in group:
            if self._specs[member].restart == "temporary":
                self._forget(member)
        group = [member for member in group if member in self._specs]
        delay = self._delay(name)
        if delay > 0:
            self._start_later(group, delay)
        else:
            self._start_again(group)

    @handles(_Again)
    def _backoff_over(self, message: _Again) -> None:
        self._backoffs.pop(message.wait, None)
        names = [name for name in self._specs if self._waiting.get(name) == message.wait]
        for name in names:
            del self._waiting[name]
        self._start_again(names)

    # ------------------------------------------------------------ steps
    def _start(self, name: str) -> RunningActor:
        spec = self._specs[name]
        ref = self.spawn(
            spec.cls,
            *spec.args,
            name=self._known_as(name),
            shutdown=spec.shutdown,
            **spec.kwargs,
        )
        child = ref.resolve()
        assert child is not None
        self._kids[name] = child
        self._started_at[name] = self.clock.monotonic()
        self.watch(ref)
        return child

    def _known_as(self, name: str) -> str:
        return self._specs[name].known_as or f"{self.name}/{name}"

    def _start_again(self, names: list[str]) -> None:
        for name in names:
            if name not in self._specs or name in self._kids:
                continue
            try:
                self._start(name)
            except Exception as error:
                # Treated as a child that fails at once; those after it wait for it.
                log.error(  # noqa: TRY400  # not `exception`: it may show local variables
                    "child cannot be started",
                    supervisor=self.name,
                    child=name,
                    traceback=format_error(error),
                )
                self._started_at[name] = self.clock.monotonic()
                self.system.note_failure(self._known_as(name), error)
                why = f"{type(error).__name__}: {error}"
                self.actor_inbox.put(Envelope(_Unstarted(name=name, error=why)))
                return

    def _start_later(self, names: list[str], delay: float) -> None:
        wait = next(self._numbers)
        self._waiting |= dict.fromkeys(names, wait)  # with those that wait already
        for other in self._backoffs.keys() - self._waiting.values():
            self._backoffs.pop(other).cancel()
        self._backoffs[wait] = self.after(delay, _Again(wait=wait))

    async def _halt(self, names: list[str]) -> None:
        for name in reversed(names):
            child = self._kids.pop(name, None)
            if child is None:
                continue
            box = child.actor_inbox
            limit = child.actor_limit
            try:
                self.system.waits.enter(self.actor_inbox, box)
            except DeadlockError:
                # It waits for this supervisor, in a handler that could only end after it.
                limit = 0
            try:
                await end_actor(child, limit, self.clock.call_later)
            finally:
                self.system.waits.leave(self.actor_inbox)

    def _whose(self, down: Down) -> str | None:
        for name, child in self._kids.items():
            if child.incarnation == down.incarnation:
                return name
        return None

    def _group(self, name: str) -> list[str]:
        if self._strategy == "one_for_one":
            return [name]
        order = list(self._specs)
        return order if self._strategy == "one_for_all" else order[order.index(name) :]

    def _may_restart(self, name: str, why: str) -> bool:
        """Count a restart; return false if the child is to be given up.

        Raises:
            RestartIntensity: the supervisor has to give up instead.
        """
        now = self.clock.monotonic()
        restarts = self._restarts
        restarts.append(now)
        while restarts and now - restarts[0] >= self._within:
            restarts.popleft()
        if len(restarts) > self._max_restarts:
            raise RestartIntensity(
                f"{self.name}: more than {self._max_restarts} restarts within {self._within:g} s; "
                f"the last was {name}, {why}"
            )
        return True

    def _delay(self, name: str) -> float:
        if self._backoff is None:
            return 0.0
        return backoff_delay(self._backoff, self._failures[name])

    def _forget(self, name: str) -> None:
        known = name in self._specs
        tables = (self._specs, self._kids, self._started_at, self._failures, self._waiting)
        for table in tables:
            table.pop(name, None)
        if known:
            self.on_forgotten(name)


class DynamicSupervisor(Supervisor):
    """A `one_for_one` supervisor that starts without children; its subclass starts them.

    The counterpart of Elixir's `DynamicSupervisor`, except that it never fails because of a child:
    each child has restarts of its own, and one that has used them up is given up. A child that
    ended and is not restarted is forgotten, and its name is free: the next `ensure_child` starts it
    again.

    Args:
        max_restarts: restarts in a row that each child is allowed; one more failure, and it is
            given up. A child that lived for `within` seconds begins at none again.
        within: seconds.
        backoff: as for `Supervisor`; it must delay, since a child may fail at once.
    """

    def __init__(
        self, max_restarts: int = 10, within: float = 10.0, backoff: Backoff = BACKOFF
    ) -> None:
        super().__init__([], max_restarts=max_restarts, within=within, backoff=backoff)

    @property
    def children(self) -> tuple[str, ...]:
        """Names under this supervisor, in start order; a child that awaits its restart counts."""
        return tuple(self._specs)

    def has_child(self, name: str) -> bool:
        """Return whether a child has this name under the supervisor."""
        return name in self._specs

    def ensure_child(self, spec: ChildSpec) -> str:
        """Start a child unless there is one of that name.

        Returns:
            Its name in the System.

        Raises:
            Exception: what its constructor raised; then there is no such child.
        """
        if spec.name in self._specs:
            return self._known_as(spec.name)
        return self._start_child(StartChild(spec=spec))

    async def end_child(self, name: str) -> bool:
        """End a child and forget it; return whether there was one."""
        return await self._stop_child(StopChild(name=name))

    def _may_restart(self, name: str, why: str) -> bool:
        failures = self._failures[name]
        if failures <= self._max_restarts:
            return True
        log.error("child given up", child=self._known_as(name), failures=failures, reason=why)
        return False
