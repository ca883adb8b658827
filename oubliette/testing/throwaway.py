"""Throw-away systems: a whole Oubliette in this process on a home that is removed at the end.

Each test has one of its own: a start takes a tenth of a second, and nothing is shared. At the end
the home is checked: no process, thread or task may be left, and its logs keep the invariants.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette.kit.errors import ActorDead
from oubliette.testing.agent_script import NAME, AgentScript, RehearsedRuntime
from oubliette.testing.invariants import check_home
from oubliette.testing.remains import end_processes

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import TracebackType

    from oubliette.api.client import Oubliette
    from oubliette.api.project import Project
    from oubliette.testing.skipping_clock import SkippingClock

PROJECT: Final = "throwaway"
STORE: Final = "stores/store"
END_SECONDS: Final = 5.0
_POOLS: Final = ("asyncio_", "AnyIO worker", "ThreadPoolExecutor")
"""Names of threads that belong to the executors of a loop."""


class LeftBehind(AssertionError):
    """A throw-away system has left something that lives."""


class ThrowawayHome:
    """Home of one throw-away system, checked and removed at the end."""

    def __init__(self, settings: Mapping[str, object], script: AgentScript | None) -> None:
        # Short, because sockets lie below it.
        self.path = Path(tempfile.mkdtemp(prefix="obt", dir="/tmp"))
        self.agents = (RehearsedRuntime(script or AgentScript()),)
        self.config: dict[str, object] = {
            "agents.default": NAME,
            "containers.runtime": "process",
            "containers.runtime_dir": str(self.path / "r"),
            "process.sandbox": "bubblewrap" if shutil.which("bwrap") else "best-effort",
            **settings,
        }
        self._threads = set(threading.enumerate())

    def prepare(self, clock: SkippingClock | None) -> Oubliette:
        """Return a system on this home; nothing is opened before it is entered."""
        from oubliette.api.opening import open_on

        return open_on(clock, self.path, config=self.config, agents=self.agents)

    async def check(self, tasks: set[asyncio.Task[Any]] | None = None) -> None:
        """Check that nothing lives, and that the logs are right.

        Raises:
            LeftBehind: a process, a thread or a task is left.
            InvariantBroken: a log breaks an invariant.
        """
        left = [f"the process {each}" for each in await end_processes(self.path)]
        for thread in set(threading.enumerate()) - self._threads:
            if thread is threading.current_thread() or thread.name.startswith(_POOLS):
                continue
            await asyncio.to_thread(thread.join, END_SECONDS)
            if thread.is_alive():
                left.append(f"the thread {thread.name}")
        if tasks is not None:
            ending = asyncio.all_tasks() - tasks
            if ending:
                await asyncio.wait(ending, timeout=END_SECONDS)
            left += [f"the task {task.get_name()}" for task in ending if not task.done()]
        if left:
            raise LeftBehind(f"the system has ended, and has left {', '.join(left)}")
        await asyncio.to_thread(check_home, self.path)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


class ThrowawayProject:
    """Async context manager of a project on a throw-away system; used once.

    Args:
        settings: Settings of the system, by `section.key`.
        script: Scripts of the agents; None: prompts are scripts.
        clock: Clock of its deadlines; None: the machine's.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        script: AgentScript | None = None,
        clock: SkippingClock | None = None,
    ) -> None:
        self._settings = settings or {}
        self._script = script
        self._clock = clock
        self._home: ThrowawayHome
        self._tasks: set[asyncio.Task[Any]]
        self.oubliette: Oubliette
        """The system, while the block runs."""

    async def __aenter__(self) -> Project:
        self._tasks = asyncio.all_tasks()
        home = self._home = ThrowawayHome(self._settings, self._script)
        self.oubliette = home.prepare(self._clock)
        try:
            await self.oubliette.__aenter__()
            drain(self._clock, self.oubliette)
            return await self.oubliette.project(PROJECT)
        except BaseException:
            await self.oubliette.aclose()
            home.remove()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.oubliette.__aexit__(kind, error, traceback)
            if error is None:
                await self._home.check(self._tasks)
            else:
                await end_processes(self._home.path)
        finally:
            await asyncio.to_thread(self._home.remove)


@contextlib.contextmanager
def blocking_project(
    *,
    settings: Mapping[str, object] | None = None,
    script: AgentScript | None = None,
    clock: SkippingClock | None = None,
) -> Generator[Any]:
    """Open a project on a throw-away system with the blocking API.

    Raises:
        LeftBehind: at the end, something lives.
        InvariantBroken: at the end, a log breaks an invariant.
    """
    from oubliette.sync import Oubliette

    home = ThrowawayHome(settings or {}, script)
    try:
        prepared = home.prepare(clock)
        with Oubliette(prepared) as opened:
            drain(clock, prepared)
            yield opened.project(PROJECT)
        _run(home.check)
    finally:
        home.remove()


def drain(clock: SkippingClock | None, opened: Oubliette) -> None:
    """Make skips of the clock wait for what the opened system writes."""
    from oubliette.actors.store.actor import Transact

    if clock is None:
        return
    store = opened.system.ref(STORE)

    async def barrier() -> None:
        with contextlib.suppress(ActorDead):  # the system has ended
            await store.ask(Transact(ops=()))

    clock.drain_with(barrier)


def _run(work: Any) -> None:
    """Run a coroutine function on a loop of its own in a thread: the caller may be on one."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal("asyncio") as portal:
        portal.call(work)
