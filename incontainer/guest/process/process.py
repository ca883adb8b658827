"""Process run by the guest: its streams, its stdin and its exit.

A process belongs to the guest, not to the link that requested it: links may break and be replaced,
the output stays in the spool, and the exit status is kept until the server sends `forget`. One that
was started `until_detached` belongs to its attached link, and ends with it.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from ...io import linux
from ...io.event_loop import READ
from ...wire import STDERR, STDOUT, TICKET_SECONDS
from . import secret_files
from .spawn import Spec, explain, spawn, spawn_in_terminal
from .spool import FILE_BYTES, Spool
from .streams import Stdin, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ...io.event_loop import Loop, LoopTimer

    class OutputReader(Protocol):
        """Attached link, notified when there may be something new to send."""

        def pump(self) -> None: ...

        def evict(self) -> None:
            """Close: a newer link has replaced this one."""
            ...

    Event = dict[str, Any]
    Failure = tuple[str, str]  # code, message
    Started = Callable[["GuestProcess", "Failure | None"], None]
    Window = tuple[int, int]  # rows, columns

LEFTOVER_SECONDS = 2.0  # streams held open by a grandchild are read this long after the exit
KILL_AFTER = 5.0  # seconds from TERM or HUP to KILL
KILL_ROUNDS = 20  # scans of /proc while a tree is killed: children may fork during one


class GuestProcess:
    """A started program with its streams, until it is forgotten."""

    def __init__(
        self,
        loop: Loop,
        proc: str,
        spec: Spec,
        spool_folder: str,
        tell: Callable[[Event], None],
        *,
        drop: Callable[[GuestProcess], None],
        session: str | None = None,
        spool_bytes: int = FILE_BYTES,
        until_detached: bool = False,
    ) -> None:
        self.loop = loop
        self.proc = proc
        self.spec = spec
        self.session = session
        self.until_detached = until_detached
        self.has_terminal = False
        self.pid = 0
        self.started = False
        self.exit: dict[str, int | None] | None = None  # set when both streams have ended too
        self.out = Stream(self, STDOUT, Spool(spool_folder, spool_bytes))
        self.err = Stream(self, STDERR, Spool(spool_folder, spool_bytes))
        self.stdin = Stdin(loop, self._pump)
        self.reader: OutputReader | None = None
        self.waiting: list[Started] = []  # callbacks of the requests to start it
        self._tell = tell
        self._drop = drop
        self._hung_up = False
        self._status: int | None = None
        self._report = -1
        self._timers: list[LoopTimer] = []
        self._last_timer: LoopTimer | None = None  # goes on after the exit: descendants may be left
        self._left_at: float | None = None

    def start(
        self,
        *,
        stdin: bool,
        merge_stderr: bool,
        deadline_seconds: float | None,
        window: Window | None = None,
    ) -> Failure | None:
        """Fork; the callbacks in `waiting` are called once exec has succeeded or failed.

        With a `window` the program gets a terminal of that size as all of its streams.
        """
        theirs: list[int] = []
        ours: list[int] = []
        self.has_terminal = window is not None
        try:
            if window is not None:
                self.pid, self._report, side = spawn_in_terminal(self.spec, window)
                stdin, merge_stderr = side >= 0, True
                if stdin:  # the loop watches each descriptor for one thing
                    ours += side, os.dup(side)
            else:
                stdin_in = self._pipe(theirs, ours, to_child=True) if stdin else self._null(theirs)
                out = self._pipe(theirs, ours, to_child=False)
                err = out if merge_stderr else self._pipe(theirs, ours, to_child=False)
                self.pid, self._report = spawn(self.spec, (stdin_in, out, err))
        except OSError as error:
            for fd in ours:
                os.close(fd)
            why = f"cannot start a process: {error.strerror}"
            if error.errno == errno.EAGAIN:
                why += "; all that runs in a container shares its processes (containers.pids)"
            return "limit", why
        finally:
            for fd in theirs:
                os.close(fd)
        if stdin:
            self.stdin.open(ours.pop(0))
        if ours:
            self.out.open(ours[0])
        else:
            self.out.end()
        if merge_stderr:
            self.err.end()
        else:
            self.err.open(ours[1])
        self.loop.watch(self._report, READ, self._reported)
        if deadline_seconds is not None:
            self._timers.append(self.loop.call_later(deadline_seconds, self._overdue))
        if self.until_detached:
            self._timers.append(self.loop.call_later(TICKET_SECONDS, self._unattached))
        return None

    @staticmethod
    def _pipe(theirs: list[int], ours: list[int], *, to_child: bool) -> int:
        reading, writing = os.pipe()
        child, ours_end = (reading, writing) if to_child else (writing, reading)
        theirs.append(child)
        ours.append(ours_end)
        return child

    @staticmethod
    def _null(theirs: list[int]) -> int:
        fd = os.open(os.devnull, os.O_RDONLY)
        theirs.append(fd)
        return fd

    def _reported(self, _mask: int) -> None:
        report = os.read(self._report, 4096)
        self.loop.unwatch(self._report)
        os.close(self._report)
        self._report = -1
        failure = explain(report, self.spec)
        self.started = failure is None
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call(self, failure)
        self.changed()

    def tell(self, event: str, **fields: object) -> None:
        """Send an event about this process to the server."""
        self._tell({"event": event, "proc": self.proc, **fields})

    # Exit

    def reaped(self, status: int) -> None:
        self._status = status
        self._left_at = time.monotonic()
        secret_files.remove(self.spec.files, self.spec.uid, self.spec.gid)
        self.stdin.close()
        if not (self.out.ended and self.err.ended):
            self._timers.append(self.loop.call_later(LEFTOVER_SECONDS, self._leave))
        self.changed()

    @property
    def is_leaving(self) -> bool:
        """Whether it ended so long ago that its streams are no longer waited for."""
        return self._left_at is not None and time.monotonic() >= self._left_at + LEFTOVER_SECONDS

    def _leave(self) -> None:
        self.out.finish()
        self.err.finish()
        self.changed()

    def changed(self) -> None:
        """Finish if this was the last change, and notify the attached link."""
        ended = self._status is not None and self.out.ended and self.err.ended
        if ended and self.exit is None and self._report < 0:
            self._cancel_timers()
            status = self._status or 0
            signalled = os.WIFSIGNALED(status)
            self.exit = {
                "code": None if signalled else os.WEXITSTATUS(status),
                "signal": os.WTERMSIG(status) if signalled else None,
            }
            if self.started:
                ends = {"out": self.out.spool.end, "err": self.err.spool.end}
                self.tell("exited", exit=self.exit, **ends)
        self._pump()

    def _pump(self) -> None:
        if self.reader is not None:
            self.reader.pump()

    # Its attached link

    def detached(self) -> None:
        """Note that the link which was attached has closed, and no newer one has replaced it."""
        self.reader = None
        if self.until_detached:
            self._hang_up()

    def _unattached(self) -> None:
        if self.reader is None:
            self._hang_up()

    def _hang_up(self) -> None:
        """End it as if its terminal was gone: HUP now, KILL for what is left after a while."""
        if self._hung_up:
            return
        self._hung_up = True
        if self.exit is not None:
            self._drop(self)
        else:
            self.signal(signal.SIGHUP, tree=True)
            self.signal(signal.SIGCONT, tree=True)  # one that is stopped would not notice
            self.stdin.close()
            self.out.end()
            self.err.end()
            self._last_timer = self.loop.call_later(KILL_AFTER, lambda: self._drop(self))

    def _overdue(self) -> None:
        self.tell("deadline")
        self.signal(signal.SIGTERM, tree=True)
        self._timers.append(
            self.loop.call_later(KILL_AFTER, lambda: self.signal(signal.SIGKILL, tree=True))
        )

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def discard(self) -> None:
        """Release all descriptors, files and timers of the process."""
        self._hung_up = True
        self._cancel_timers()
        if self._last_timer is not None:
            self._last_timer.cancel()
        if self.reader is not None:
            self.reader.evict()
        self.stdin.close()
        self.out.discard()
        self.err.discard()
        if self._report >= 0:
            self.loop.unwatch(self._report)
            os.close(self._report)
            self._report = -1

    # Signals

    def signal(self, number: int, *, tree: bool) -> bool:
        """Send a signal; with `tree` also to all descendants found in /proc."""
        delivered = self._status is None and _send(os.kill, self.pid, number)
        if not tree:
            return delivered
        reached: set[int] = {self.pid} if delivered else set()
        for _ in range(KILL_ROUNDS if number == signal.SIGKILL else 1):
            fresh = [pid for pid in self._members() if pid not in reached]
            if not fresh:
                break
            for pid in fresh:
                delivered = _send(os.kill, pid, number) or delivered
            reached.update(fresh)
        return delivered

    def _members(self) -> list[int]:
        """Return our group and session, orphans with our cookie, and all their descendants."""
        own = os.getpid()
        tasks = [task for task in linux.tasks() if task.pid != own]
        members: list[int] = []
        for task in tasks:
            ours = self.pid in (task.pid, task.group, task.session)
            # Once the leader is reaped its number may be another's, so the cookie decides
            sure = ours and self._status is None
            if sure or ((ours or task.parent == own) and linux.carries_cookie(task.pid, self.proc)):
                members.append(task.pid)
        return linux.trees(members, tasks)

    def record(self) -> Event:
        return {
            "id": self.proc,
            "pid": self.pid,
            "session": self.session,
            "state": "running" if self.exit is None else "exited",
            "out": [self.out.spool.start, self.out.spool.end],
            "err": [self.err.spool.start, self.err.spool.end],
            "stdin": self.stdin.seq,
            "exit": self.exit,
        }


def _send(call: Callable[[int, int], None], pid: int, number: int) -> bool:
    try:
        call(pid, number)
    except OSError:
        return False
    return True
