"""Table of the guest's processes by id, and the reaping of all its children."""

from __future__ import annotations

import os
import signal

from ...io import linux
from ..request_fields import VerbError
from .process import GuestProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...io.event_loop import Loop
    from .process import Failure
    from .spawn import Spec

PROCESSES = 1024  # running or not forgotten


class ProcessTable:
    """Owner of the processes."""

    def __init__(
        self, loop: Loop, spool_folder: str, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._loop = loop
        self._spool_folder = spool_folder
        self._tell = tell
        self._by_id: dict[str, GuestProcess] = {}
        self._by_pid: dict[int, GuestProcess] = {}  # not reaped yet

    def get(self, proc: str) -> GuestProcess | None:
        """Return the process of that id, or None."""
        return self._by_id.get(proc)

    def session_of(self, pids: list[int]) -> str | None:
        """The session of the first of these pids that belongs to a process of the table."""
        for pid in pids:
            process = self._by_pid.get(pid)
            if process is not None:
                return process.session
        return None

    def all(self) -> list[GuestProcess]:
        """All processes not forgotten, oldest first."""
        return list(self._by_id.values())

    def add(
        self,
        proc: str,
        spec: Spec,
        session: str | None,
        spool_bytes: int,
        *,
        until_detached: bool = False,
    ) -> GuestProcess:
        """Add a process that is not started yet.

        Raises:
            VerbError: The table is full.

        """
        if len(self._by_id) >= PROCESSES:
            raise VerbError("limit", f"{PROCESSES} processes are running or not forgotten")
        process = GuestProcess(
            self._loop,
            proc,
            spec,
            self._spool_folder,
            self._tell,
            drop=self.drop,
            session=session,
            spool_bytes=spool_bytes,
            until_detached=until_detached,
        )
        self._by_id[proc] = process
        process.waiting.append(self._started)
        return process

    def _started(self, process: GuestProcess, failure: Failure | None) -> None:
        if failure is None:
            self._tell({"event": "started", "proc": process.proc, "pid": process.pid})
        else:
            self.drop(process)

    def forked(self, process: GuestProcess) -> None:
        """Register the child's pid, so that `reap` can find its process."""
        self._by_pid[process.pid] = process

    def drop(self, process: GuestProcess) -> None:
        """Remove a process that has ended, or was never started."""
        if self._by_id.get(process.proc) is process:
            del self._by_id[process.proc]
        if process.started:  # its remaining children have no other owner
            process.signal(signal.SIGKILL, tree=True)
        process.discard()

    def reap(self) -> None:
        """Collect the status of every child that has ended, adopted orphans included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._by_pid.pop(pid, None)
            if process is not None:
                process.reaped(status)

    @property
    def is_quiet(self) -> bool:
        """Whether every process has ended, and its streams too unless they are blocked."""
        return not self._by_pid and all(
            process.exit is not None or process.out.held or process.err.held
            for process in self.all()
        )

    def signal_all(self, number: int) -> None:
        """Send a signal to every descendant of the guest."""
        own = os.getpid()
        reached: set[int] = set()
        for _ in range(20):
            fresh = [pid for pid in linux.descendants(own) if pid not in reached]
            for pid in fresh:
                try:
                    os.kill(pid, number)
                except OSError:
                    continue  # it has ended already
            reached.update(fresh)
            if not fresh or number != signal.SIGKILL:
                return

    def close(self) -> None:
        for process in self.all():
            process.discard()
