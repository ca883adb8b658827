"""All processes of the host by their ids, and the reaping of every child it has."""

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
    """Owns the processes."""

    def __init__(
        self, loop: Loop, spool_folder: str, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._loop = loop
        self._spool_folder = spool_folder
        self._tell = tell
        self._by_id: dict[str, GuestProcess] = {}
        self._by_pid: dict[int, GuestProcess] = {}  # not reaped yet

    def get(self, proc: str) -> GuestProcess | None:
        """The process of that id."""
        return self._by_id.get(proc)

    def session_of(self, pids: list[int]) -> str | None:
        """The session of the first of these processes that is one of ours."""
        for pid in pids:
            process = self._by_pid.get(pid)
            if process is not None:
                return process.session
        return None

    def all(self) -> list[GuestProcess]:
        """Every process not forgotten, oldest first."""
        return list(self._by_id.values())

    def add(self, proc: str, spec: Spec, session: str | None, spool_bytes: int) -> GuestProcess:
        """Make a process that is not started yet.

        Raises:
            VerbError: There are too many.

        """
        if len(self._by_id) >= PROCESSES:
            raise VerbError("limit", f"{PROCESSES} processes are running or not forgotten")
        process = GuestProcess(
            self._loop,
            proc,
            spec,
            self._spool_folder,
            self._tell,
            session=session,
            spool_bytes=spool_bytes,
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
        """Know the child when it is reaped."""
        self._by_pid[process.pid] = process

    def drop(self, process: GuestProcess) -> None:
        """Forget a process that has ended, or never began."""
        if self._by_id.get(process.proc) is process:
            del self._by_id[process.proc]
        if process.started:  # what it left running has no other owner
            process.signal(signal.SIGKILL, tree=True)
        process.discard()

    def reap(self) -> None:
        """Take the status of every child that has ended, orphans we adopted included."""
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
        """Whether every process has ended, and its streams too unless they are held back."""
        return not self._by_pid and all(
            process.exit is not None or process.out.held or process.err.held
            for process in self.all()
        )

    def signal_all(self, number: int) -> None:
        """Signal everything that descends from the host."""
        own = os.getpid()
        reached: set[int] = set()
        for _ in range(20):
            children: dict[int, list[int]] = {}
            for task in linux.tasks():
                children.setdefault(task.parent, []).append(task.pid)
            below: list[int] = list(children.get(own, ()))
            for pid in below:
                below.extend(children.get(pid, ()))
            fresh = set(below) - reached
            for pid in fresh:
                try:
                    os.kill(pid, number)
                except OSError:
                    continue  # it went by itself
            reached |= fresh
            if not fresh or number != signal.SIGKILL:
                return

    def close(self) -> None:
        """Give every descriptor back."""
        for process in self.all():
            process.discard()
