"""Calls of Apple's `container` program, with a deadline, bounded output and explained errors.

The program has no other documented interface. Each call is a process in its own session (a
terminal's Ctrl-C is for the server only) that is ended with SIGTERM, then SIGKILL, at its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import DeadlineExceeded, OublietteError
from oubliette.runtime.containers.engine_errors import EngineMissing, EngineNotFound, EngineRefused

if TYPE_CHECKING:
    from asyncio import StreamReader
    from asyncio.subprocess import Process
    from collections.abc import Sequence

PROGRAM: Final = "container"
CALL_SECONDS: Final = 60.0
END_SECONDS: Final = 3.0  # from SIGTERM to SIGKILL
CALLS_AT_ONCE: Final = 8
OUTPUT_BYTES: Final = 8 << 20
ERROR_BYTES: Final = 64 << 10
USAGE: Final = 64
"""Exit code for a command line that it does not understand."""

INSTALL: Final = (
    "install container 1.0 or later (https://github.com/apple/container/releases; macOS 26 on Apple"
    " silicon), or set apple.path"
)
START: Final = "container system start --enable-kernel-install"


class Done(msgspec.Struct, frozen=True):
    """Result of a completed call."""

    code: int
    """Its exit code; negative for a signal."""
    out: bytes
    err: bytes

    @property
    def error_text(self) -> str:
        """Error message of the call, in one line."""
        text = self.err.decode("utf-8", "replace").strip() or self.out.decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        kept = [line for line in lines if not line.startswith("Usage:")]
        return " ".join(kept[-4:]).removeprefix("Error: ")[-1000:] or f"exit code {self.code}"


class AppleCli:
    """The `container` program, looked up once; calls may run concurrently.

    Args:
        path: the program; None = `container` on PATH.
    """

    def __init__(self, path: str | None = None) -> None:
        self._configured = path
        self._limiter = asyncio.Semaphore(CALLS_AT_ONCE)

    def program(self) -> str:
        """Path of the program.

        Raises:
            EngineMissing: the program is missing.
        """
        found = shutil.which(self._configured or PROGRAM)
        if found is None:
            raise EngineMissing(
                f"the program {self._configured or PROGRAM} is not there", hint=INSTALL
            )
        return found

    async def spawn(self, argv: Sequence[str], *, stdin: bool = False) -> Process:
        """Start a call. The caller ends it (`end`) and reads its output.

        Raises:
            EngineMissing: the program cannot be started.
        """
        program = self.program()
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            return await asyncio.create_subprocess_exec(
                program,
                *argv,
                # Not our standard input: the program would make it non-blocking.
                stdin=pipe if stdin else nothing,
                stdout=pipe,
                stderr=pipe,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise EngineMissing(f"{program}: {error.strerror}", hint=INSTALL) from error

    async def attempt(self, argv: Sequence[str], *, timeout: float = CALL_SECONDS) -> Done:
        """Run one call to its end, with any exit code.

        Raises:
            EngineMissing: the program is missing.
            DeadlineExceeded: the call did not end in time, and was killed.
        """
        async with self._limiter:
            process = await self.spawn(argv)
            try:
                async with asyncio.timeout(timeout):
                    out, err = await asyncio.gather(
                        read_end(process.stdout, OUTPUT_BYTES),
                        read_end(process.stderr, ERROR_BYTES),
                    )
                    return Done(await process.wait(), out, err)
            except TimeoutError as error:
                raise DeadlineExceeded(
                    f"container {argv[0]}: no answer within {timeout:g} s",
                    hint="container system logs may show the cause",
                ) from error
            finally:
                await end(process)

    async def call(self, step: str, argv: Sequence[str], *, timeout: float = CALL_SECONDS) -> bytes:
        """Run one call that must succeed; return its standard output. `step` names it in errors.

        A cancelled call is awaited: the services carry it out anyway, and the call that undoes it
        must come after it.

        Raises:
            EngineMissing, EngineNotFound, EngineRefused: the program reported an error.
            DeadlineExceeded: the call did not end in time.
        """
        task = asyncio.ensure_future(self.attempt(argv, timeout=timeout))
        try:
            done = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it
            raise
        if done.code != 0:
            raise explained(step, done)
        return done.out


def explained(step: str, done: Done) -> OublietteError:
    message = done.error_text
    low = message.lower()
    if "xpc connection error" in low or "container system start" in low:
        return EngineMissing("the services of container do not run", hint=START)
    if done.code == USAGE:
        return EngineRefused(
            f"apple: {step}: {message}",
            status=USAGE,
            hint="this release of container takes other options than 1.0 to 1.2; please report it",
        )
    if "not found" in low or "no such container" in low:
        return EngineNotFound(f"apple: {step}: {message}")
    return EngineRefused(f"apple: {step}: {message}")


async def read_end(reader: StreamReader | None, limit: int) -> bytes:
    """Read to the end, and return the last `limit` bytes."""
    if reader is None:
        return b""
    kept = bytearray()
    while piece := await reader.read(65536):
        kept += piece
        if len(kept) > 2 * limit:
            del kept[:-limit]
    return bytes(kept[-limit:])


async def end(process: Process) -> None:
    """End a call that still runs, and wait for it: SIGTERM, then SIGKILL."""
    if process.returncode is not None:
        return
    waiting = asyncio.ensure_future(_end(process))
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await waiting  # a few seconds at most; no process is left behind
        raise


async def _end(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    drains = [
        asyncio.ensure_future(read_end(reader, 0)) for reader in (process.stdout, process.stderr)
    ]
    try:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
    finally:
        for drain in drains:
            drain.cancel()
        await asyncio.gather(*drains, return_exceptions=True)
