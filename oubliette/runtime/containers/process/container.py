"""Container of the process runtime: its state, and its life from the start to the end.

One pidfd per container becomes readable when it has ended; then the exit code is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers.process import procfs, state_file, unsandboxed

if TYPE_CHECKING:
    import subprocess

    from oubliette.runtime.containers.process.sandbox_plan import SandboxPlan
    from oubliette.runtime.containers.process.state_file import StoredContainer

KILL_TIMEOUT: Final = 5.0  # seconds from SIGKILL to the end of the last process
MONITOR_TIMEOUT: Final = 2.0  # seconds from the end of process 1 to bwrap's own


class ProcessContainer:
    """State of one known container."""

    def __init__(self, kept: StoredContainer, plan: SandboxPlan) -> None:
        self.record = kept
        self.plan = plan
        self.lock = asyncio.Lock()
        self.child: subprocess.Popen[bytes] | None = None
        """The child process; None for an adopted one."""
        self.keeper: subprocess.Popen[bytes] | None = None
        """The child that keeps its network."""
        self.warnings: tuple[str, ...] = ()
        self.over: asyncio.Task[None] | None = None
        """Task that runs as long as the container; owned by the runtime."""
        self.watch: procfs.Watch | None = None

    @property
    def running(self) -> bool:
        """Whether its end has not been noticed."""
        return self.over is not None and not self.over.done()

    def observe(self, process: procfs.HostProcess) -> None:
        """Watch the running process for its end.

        Raises:
            OSError: it has no descriptor, mostly because the limit of descriptors is reached.
        """
        self.watch = procfs.Watch(process)
        self.over = asyncio.create_task(
            self._until_over(self.watch), name=f"container {self.record.spec.id}"
        )

    async def _until_over(self, watch: procfs.Watch) -> None:
        """Wait for the end, clean up and record how it ended."""
        await watch.over()
        watch.close()
        for process in (self.record.monitor, self.record.keeper):
            if process is None:
                continue
            try:
                async with asyncio.timeout(MONITOR_TIMEOUT):
                    await procfs.ended(process)
            except OSError:  # too late (TimeoutError), or the limit of descriptors is reached
                procfs.send_signal(process, signal.SIGKILL)
        if self.keeper is not None:
            self.keeper.wait()
        if not self.plan.sandboxed:
            with contextlib.suppress(OSError):  # no descriptor left; `remove` sweeps again
                await asyncio.to_thread(unsandboxed.sweep, self.record.spec.id)
        code = self.child.wait() if self.child is not None else None
        if self.plan.sandboxed:
            code = self._bwrap_exit_code()
        elif code is not None and code < 0:
            code = 128 - code
        self.child = self.keeper = None
        self.record = msgspec.structs.replace(
            self.record, process=None, monitor=None, keeper=None, exit_code=code
        )
        with contextlib.suppress(OSError):  # a full disk must not turn an end into a failure
            state_file.save(self.record)

    def _bwrap_exit_code(self) -> int | None:
        path = self.plan.status
        text, _ = state_file.tail(path, 1)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(text)["exit-code"])
        return None

    async def end(self, timeout: float) -> None:
        """End all its processes: SIGTERM, `timeout` seconds, SIGKILL; at once for 0.

        Raises:
            RuntimeFailure: it has not ended after `KILL_TIMEOUT`.
        """
        process = self.record.process
        if not self.running or self.over is None or process is None:
            return
        if timeout > 0:
            procfs.send_signal(process, signal.SIGTERM)
            if await _finishes(self.over, timeout):
                return
        procfs.send_signal(process, signal.SIGKILL)
        if not await _finishes(self.over, KILL_TIMEOUT):
            raise RuntimeFailure(
                f"container {self.record.spec.id} (pid {process.pid}) does not end",
                hint="a process in it hangs in the kernel, often on a network file system",
            )

    def release(self) -> None:
        """Drop the descriptor and the child, which goes on."""
        if self.watch is not None:
            self.watch.close()
        for child in (self.child, self.keeper):
            if child is not None and child.poll() is None:
                # It outlives us on purpose, and Popen must not warn of that when collected.
                child.returncode = 0


async def _finishes(task: asyncio.Task[None], timeout: float) -> bool:
    done, _ = await asyncio.wait([task], timeout=timeout)
    return bool(done)
