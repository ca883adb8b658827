"""Notification that an Apple container is ready, and that it has ended, without polling.

`container` has no events. `logs -f` goes on after the end, `start -a` does not work for a running
container, and a connection to the published socket before the relay listens may end that socket.
So one process is run inside (`exec -i`) that only waits for the end of its input. It runs as long
as the container does and we hold the other end of its input; if the server is killed, that closes.
At a start it first waits, inside, for the guest to listen.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers.apple import argv as apple_argv
from oubliette.runtime.containers.apple import cli as apple_cli

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from oubliette.runtime.containers.apple.cli import AppleCli

WAIT_READY: Final = """
import os, socket, sys
fifo, relay = sys.argv[1:]
try:
    os.mkfifo(fifo, 0o600)
except FileExistsError:
    pass
fd = os.open(fifo, os.O_RDWR | os.O_NOFOLLOW)
link = socket.socket(socket.AF_UNIX)
try:
    link.connect(relay)
except OSError:
    os.read(fd, 6)
link.close()
os.unlink(fifo)
os.close(fd)
os.write(1, b"ready\\n")
os.execvp("cat", ["cat"])
"""
"""The guest listens first and reports it then, to an open FIFO. So: open it, check whether the
guest listens, and only if not, wait for the report. This order has no race."""


class ExitWatch:
    """One `exec` that runs as long as the container, or until `close`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.create_task(self._run(), name="container exit watch")

    @classmethod
    async def open(cls, cli: AppleCli, container: str, *, await_ready: bool = False) -> ExitWatch:
        """Run it in a running container.

        Raises:
            EngineMissing: the program is missing.
        """
        command = ["cat"]
        if await_ready:
            command = ["python3", "-I", "-c", WAIT_READY, apple_argv.READY, apple_argv.RELAY]
        argv = apple_argv.execute(container, command, stdin=True)
        return cls(await cli.spawn(argv, stdin=True))

    async def _run(self) -> str:
        """Read the output to its end; return the error text of a failure."""
        process = self._process
        assert process.stdout is not None
        errors = asyncio.create_task(apple_cli.read_end(process.stderr, apple_cli.ERROR_BYTES))
        try:
            received = b""
            while piece := await process.stdout.read(4096):
                received = (received + piece)[:16]
                if received.startswith(b"ready\n") and not self._ready.done():
                    self._ready.set_result(None)
            await process.wait()
            return (await errors).decode("utf-8", "replace").strip()[-500:]
        finally:
            errors.cancel()
            await asyncio.gather(errors, return_exceptions=True)
            await apple_cli.end(process)

    @property
    def alive(self) -> bool:
        return not self._ended.done()

    async def ready(self) -> bool:
        """Wait until the relay listens; false if the container ended before."""
        await asyncio.wait({self._ready, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        return self._ready.done()

    async def ended(self) -> None:
        """Wait for its end. Cancelling ends only the wait."""
        await asyncio.wait({self._ended})

    async def close(self) -> None:
        self._ready.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(apple_cli.END_SECONDS):
                await self.ended()
                return
        self._ended.cancel()
        await asyncio.gather(self._ended, return_exceptions=True)
