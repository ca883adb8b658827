"""Stages of a server's start and stop: each has a name, a measured duration and a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.errors import ConfigError, DeadlineExceeded, OublietteError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

STAGE_SECONDS: Final = 60.0  # for one stage of the start
SLOW_SECONDS: Final = 1.0
"""Time of a stage of the start from which the log has it at the level info."""
CLOSE_SECONDS: Final = 3.0  # for one part to close at the stop

_REMEDIES: Final = {
    errno.ENOSPC: "free some space on the disk of the home",
    errno.EDQUOT: "the disk quota of this user is used up",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EROFS: "choose a home on a disk that can be written to, with --home",
}

log = structlog.get_logger("oubliette.server")


def no_room(error: BaseException) -> Unavailable | None:
    """Return the error for a machine that has no memory, or gives no thread; None: another one."""
    thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if not thread and not isinstance(error, MemoryError):
        return None
    what = "thread can be started" if thread else "memory is left"
    return Unavailable(
        f"no more {what} on this machine",
        hint="raise the limits of processes (ulimit -u) and of memory (ulimit -v, control groups)",
    )


@contextlib.asynccontextmanager
async def starting(name: str, seconds: float = STAGE_SECONDS) -> AsyncGenerator[None]:
    """Run one stage of the start.

    Raises:
        DeadlineExceeded: it took more than `seconds`.
        ConfigError: the system refused an operation; names the stage.
        Unavailable: the machine has no room for another thread.
    """
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"start-up: the stage {name!r} took more than {seconds:.0f} s",
            hint="oubliette doctor",
        ) from error
    except OSError as error:
        if isinstance(error, OublietteError):
            raise
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        raise ConfigError(
            f"start-up: the stage {name!r} failed: {what}",
            hint=_REMEDIES.get(error.errno or 0, "oubliette doctor checks what a server needs"),
        ) from error
    except (RuntimeError, MemoryError) as error:
        if (refused := no_room(error)) is None:
            raise
        raise refused from error
    seconds = round(time.monotonic() - began, 3)
    if seconds >= SLOW_SECONDS:
        log.info("stage started", stage=name, seconds=seconds)
    else:
        log.debug("stage started", stage=name, seconds=seconds)


async def stopping(
    name: str, close: Callable[[], Awaitable[Any]], seconds: float = CLOSE_SECONDS
) -> None:
    """Run one stage of the stop; after `seconds` log a warning and return, so the next runs."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await close()
    except TimeoutError:
        if not limit.expired():
            raise
        log.warning("part does not close in time", stage=name, seconds=seconds)
