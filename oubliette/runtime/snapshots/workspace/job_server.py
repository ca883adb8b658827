"""The process that forks a child for each job on a workspace.

A snapshot is made after each turn, and Python's start with its imports would take longer than the
work in a small workspace. This process has imported everything, reads no workspace, and has no
thread. Its standard input is a socket, on which each byte brings the descriptor of a job's own
socket: the child reads the job there, writes its answer, and this process adds how the child ended.
A job whose socket is closed by the server is killed with all that it has started; without the
server, everything ends.

Standard library only: it starts in few milliseconds.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import tempfile
import traceback
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from oubliette.runtime.snapshots.workspace import program

if TYPE_CHECKING:
    from types import FrameType

_SHOWN: Final = 500
"""Bytes of a child's standard error, in the end of its answer."""
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL


class _Job(NamedTuple):
    pid: int
    link: socket.socket
    errors: int


class JobServer:
    """Owner of the children; `run` returns when the server has gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._jobs: dict[int, _Job] = {}
        """By the descriptor of their sockets."""
        self._woken, wake = socket.socketpair()
        self._wake = wake
        for end in (self._woken, wake):
            end.setblocking(False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # blocked ones are inherited
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noted)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def run(self) -> None:
        """Fork children until the control socket is closed."""
        while True:
            for fd, events in self._poll.poll():
                if fd == self._control.fileno():
                    if not self._begin():
                        self._kill_all()
                        return
                elif fd == self._woken.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                elif fd in self._jobs and events & _GONE:
                    self._poll.unregister(fd)
                    _kill(self._jobs[fd].pid)

    def _begin(self) -> bool:
        try:
            data, (fd,), _, _ = socket.recv_fds(self._control, 1, 1)
        except ValueError:  # the byte of a server that is going, without a socket
            return False
        if not data:
            return False
        link = socket.socket(fileno=fd)
        with tempfile.TemporaryFile(buffering=0) as file:
            errors = os.dup(file.fileno())
        pid = os.fork()
        if pid == 0:
            self._become_job(link, errors)
        self._jobs[fd] = _Job(pid, link, errors)
        self._poll.register(fd, 0)  # its end is reported without being asked for
        return True

    def _become_job(self, link: socket.socket, errors: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.dup2(errors, 2)
            # A socket that two processes have open would not end with one of them.
            for job in self._jobs.values():
                job.link.close()
                os.close(job.errors)
            for end in (self._control, self._woken, self._wake):
                end.close()
            with link.makefile("rwb") as file:
                answer = program.do(json.loads(file.readline()))
                file.write(json.dumps(answer).encode() + b"\n")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        for fd, job in list(self._jobs.items()):
            status = os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                continue
            _kill(job.pid)  # its group; the id is still its own
            _, code = os.waitpid(job.pid, 0)
            del self._jobs[fd]
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
            self._tell(job, os.waitstatus_to_exitcode(code))

    @staticmethod
    def _tell(job: _Job, code: int) -> None:
        size = os.lseek(job.errors, 0, os.SEEK_END)
        text = os.pread(job.errors, _SHOWN, max(0, size - _SHOWN)).decode(errors="replace")
        os.close(job.errors)
        told: dict[str, Any] = {"code": code, "errors": text.strip()}
        with contextlib.suppress(OSError):  # the server has closed it
            job.link.sendall(json.dumps(told).encode() + b"\n")
        job.link.close()

    def _kill_all(self) -> None:
        for job in self._jobs.values():
            _kill(job.pid)


def main() -> None:
    """Run with standard input as the control socket."""
    gc.disable()  # children make millions of small objects at once, and end
    JobServer(socket.socket(fileno=0)).run()


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the byte in the wake-up socket is what counts."""
    del number, frame


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not have its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
