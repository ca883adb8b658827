"""The daemon: a server from its start to the signal that stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import heap
from oubliette.errors import OublietteError
from oubliette.server import running

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from oubliette.config.schema import Config
    from oubliette.server import Server

START_MAY_END: Final = 2.0  # seconds for a start that was stopped, before it is given up
SWITCH_SECONDS: Final = 0.0005  # for the writer's thread to get its turn beside a busy loop
STOP: Final = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger("oubliette.server")


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Told once the port is bound and everything runs."""

    url: str
    pid: int
    home: str
    runtime: str
    isolation: str


async def serve(home: Path, config: Config, *, ready: Callable[[Ready], None]) -> None:
    """Serve until SIGTERM or SIGINT; then stop in order, each part within its few seconds.

    A start that is stopped is gone through with, or given up if it takes longer than a moment.

    Raises:
        OublietteError: as `running`, and when a part has failed for good.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    async with contextlib.AsyncExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        server = await _started(stack, running(home, config), stop)
        if server is None:
            log.info("stopped before the start was over")
            return
        ready(
            Ready(
                url=server.url,
                pid=os.getpid(),
                home=str(home),
                runtime=server.context.runtime.name,
                isolation=server.context.runtime.capabilities.isolation,
            )
        )
        stopped = asyncio.ensure_future(stop.wait())
        freezing = asyncio.create_task(_freeze(server), name="freeze the heap")
        await asyncio.wait({stopped, server.failed}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        freezing.cancel()
        log.info("stopping", agents=config.server.on_stop)
    if server.failed.done():
        raise OublietteError(
            f"the server could not go on: {server.failed.result()}",
            hint="start it again; agents live on, and nothing that was acknowledged is lost",
        )


async def _started(
    stack: contextlib.AsyncExitStack,
    start: contextlib.AbstractAsyncContextManager[Server],
    stop: asyncio.Event,
) -> Server | None:
    """Enter `start`; None if it was to `stop` meanwhile and took too long for that."""
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
    """Have no collection of garbage look at code and models again, once they are there."""
    await server.loaded()
    heap.settle()


@contextlib.contextmanager
def stop_signals() -> Generator[asyncio.Event]:
    """An event that is set by the first SIGTERM or SIGINT; those that follow change nothing.

    At the end the handlers are there again that were there before. To be called on the main thread,
    under a running loop.
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
            # What was not set from Python, which is None, cannot be set again from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _hung_up() -> None:
    log.info(
        "SIGHUP: nothing is done",
        why="the configuration is read at the start: to have it read again, stop and start",
    )
