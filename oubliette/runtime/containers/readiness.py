"""Wait for the guest at the other end of a pipe to report that it listens."""

from __future__ import annotations

import asyncio
import contextlib
import os


async def read_ready(fd: int) -> None:
    """Return when `ready` was read from `fd` (non-blocking; it stays open)."""
    loop = asyncio.get_running_loop()
    said = b""
    while b"\n" not in said:
        turn: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, _wake, turn)
        try:
            await turn
        finally:
            loop.remove_reader(fd)
        with contextlib.suppress(BlockingIOError):
            said += os.read(fd, 64)


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
