"""The daemon: a server from its start to the signal that stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette.errors import ConfigError, OublietteError
from oubliette.kit.fair_loop import run_fairly
from oubliette.runtime import heap
from oubliette.server import running

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from oubliette.config.schema import Config
    from oubliette.server import Server

START_MAY_END: Final = 2.0  # seconds for a start to finish after a stop was requested
SWITCH_SECONDS: Final = 0.0005  # seconds; lets the writer's thread run beside a busy loop
FEWEST_FILES: Final = 48  # with fewer its parts start, and one of them ends where it imports
STOP: Final = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger("oubliette.server")


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a server that is ready: the port is bound and all parts run."""

    url: str
    pid: int
    home: str
    runtime: str
    isolation: str
    agent: str
    """Agent of sessions for which none is named."""


async def serve(home: Path, config: Config, *, ready: Callable[[Ready], None]) -> None:
    """Serve until SIGTERM or SIGINT; then stop all parts in order, each within its time limit.

    A signal during the start lets it finish, or cancels it if it takes longer than `START_MAY_END`.

    Raises:
        ConfigError: it may have too few open files.
        OublietteError: as `running`, and when a critical part has failed permanently.
    """
    _check_open_files()
    sys.setswitchinterval(SWITCH_SECONDS)
    run_fairly(asyncio.get_running_loop())
    async with contextlib.AsyncExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        server = await _started(stack, running(home, config), stop)
        if server is None:
            log.info("stopped during the start")
            return
        ready(
            Ready(
                url=server.url,
                pid=os.getpid(),
                home=str(home),
                runtime=server.context.runtime.name,
                isolation=server.context.runtime.capabilities.isolation,
                agent=next(iter(server.context.agents))
                if config.agents.default == "auto"
                else config.agents.default,
            )
        )
        stopped = asyncio.ensure_future(stop.wait())
        freezing = asyncio.create_task(_freeze(server), name="freeze the heap")
        await asyncio.wait({stopped, server.failed}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        freezing.cancel()
        log.info("stopping", agents="keep" if server.keeps_agents else "end")
    if server.failed.done():
        raise OublietteError(
            f"the server could not go on: {server.failed.result()}",
            hint="start it again; agents live on, and nothing that was acknowledged is lost",
        )


def _check_open_files() -> None:
    """Refuse a limit with which a server would end as soon as it is used."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FEWEST_FILES:
        raise ConfigError(
            f"the limit of open files is {most}, and a server needs at least {FEWEST_FILES}",
            hint="raise it: ulimit -n 1024, or LimitNOFILE= of a systemd unit",
        )


async def _started(
    stack: contextlib.AsyncExitStack,
    start: contextlib.AbstractAsyncContextManager[Server],
    stop: asyncio.Event,
) -> Server | None:
    """Enter `start`; return None if it was not over in time after a `stop`."""
    loop = asyncio.get_running_loop()

    limit = asyncio.timeout(None)

    async def give_up_in_time() -> None:
        await stop.wait()
        limit.reschedule(loop.time() + START_MAY_END)

    try:
        async with limit:
            watch = asyncio.create_task(give_up_in_time(), name="a stop while it starts")
            try:
                return await stack.enter_async_context(start)
            finally:
                watch.cancel()
    except TimeoutError:
        if limit.expired():
            return None
        raise


async def _freeze(server: Server) -> None:
    """Exclude code and models from garbage collection, once they are loaded."""
    await server.loaded()
    heap.settle()


@contextlib.contextmanager
def stop_signals() -> Generator[asyncio.Event]:
    """Set an event at the first SIGTERM or SIGINT; later ones have no effect.

    At the end the former handlers are restored. Requires the main thread and a running loop.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (*STOP, signal.SIGHUP)}
    for number in STOP:
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, _hung_up)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            # A handler that was not set from Python reads as None, and cannot be restored from
            # Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _hung_up() -> None:
    log.info(
        "SIGHUP ignored",
        why="the configuration is read at the start: to have it read again, stop and start",
    )
