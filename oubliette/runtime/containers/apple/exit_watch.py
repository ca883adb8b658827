"""How we learn that an Apple container is ready, and that it has ended, without asking again.

`container` has no events. `logs -f` goes on after the end, `start -a` cannot be had for a container
that runs already, and whoever connects to the published socket before the relay listens may end
that for good. So one process is run inside (`exec -i`) that does nothing but wait for the end of
its input. It lives as long as the container does and we hold the other end of its input; with a
killed server that closes by itself. At a start it first waits, inside, for the host to listen.
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
"""The host listens first and says so then, to a FIFO that is open. So: open it, look whether it
listens, and only if it does not, wait to be told. Nothing can slip through in between."""


class Lifeline:
    """One `exec` that is held open; `close` it, or it lasts as long as the container."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.create_task(self._run(), name="container lifeline")

    @classmethod
    async def open(cls, cli: AppleCli, container: str, *, await_ready: bool = False) -> Lifeline:
        """Run it in a container that runs.

        Raises:
            EngineMissing: the program is not there.
        """
        command = ["cat"]
        if await_ready:
            command = ["python3", "-I", "-c", WAIT_READY, apple_argv.READY, apple_argv.RELAY]
        argv = apple_argv.execute(container, command, stdin=True)
        return cls(await cli.spawn(argv, stdin=True))

    async def _run(self) -> str:
        """Read to the end; what it said of a failure."""
        process = self._process
        assert process.stdout is not None
        errors = asyncio.create_task(apple_cli.read_end(process.stderr, apple_cli.ERROR_BYTES))
        try:
            said = b""
            while piece := await process.stdout.read(4096):
                said = (said + piece)[:16]
                if said.startswith(b"ready\n") and not self._ready.done():
                    self._ready.set_result(None)
            await process.wait()
            return (await errors).decode("utf-8", "replace").strip()[-500:]
        finally:
            errors.cancel()
            await asyncio.gather(errors, return_exceptions=True)
            await apple_cli.end(process)

    @property
    def alive(self) -> bool:
        """Whether it is still held."""
        return not self._ended.done()

    async def ready(self) -> bool:
        """Wait until the relay listens; false if the container ended before."""
        await asyncio.wait({self._ready, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        return self._ready.done()

    async def ended(self) -> None:
        """Wait for its end. Cancelling ends only the wait."""
        await asyncio.wait({self._ended})

    async def close(self) -> None:
        """Let go of it."""
        self._ready.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(apple_cli.END_SECONDS):
                await self.ended()
                return
        self._ended.cancel()
        await asyncio.gather(self._ended, return_exceptions=True)
