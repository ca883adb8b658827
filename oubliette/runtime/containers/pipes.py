"""Reading from pipes of programs that start: what each has to report first."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def read_until(fd: int, complete: Callable[[bytes], bool]) -> bytes:
    """Read a pipe until `complete` or its end; it becomes non-blocking, and stays open."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    data = b""
    while not complete(data):
        turn: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, _wake, turn)
        try:
            await turn
        finally:
            loop.remove_reader(fd)
        with contextlib.suppress(BlockingIOError):
            piece = os.read(fd, 4096)
            if not piece:
                break
            data += piece
    return data


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
