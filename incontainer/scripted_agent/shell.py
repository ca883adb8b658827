"""Processes of the scripted agent: start of a process group, and a shell command in one."""

from __future__ import annotations

import os
import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .interrupt import InterruptSignal

OUTPUT_LIMIT = 256 * 1024  # bytes kept of each stream of a command; the rest is read and dropped
TERM_SECONDS = 1.0  # between SIGTERM and SIGKILL
STRAGGLER_SECONDS = 0.2  # for output that the shell's own children still write when it has ended


def spawn(
    argv: list[str], environ: Mapping[str, str], stdin: int | None, stdout: int, stderr: int
) -> int:
    """Start a program in a process group of its own; `stdin` None is /dev/null.

    Raises:
        OSError: The program cannot be started.

    """
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        if stdin is None
        else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    restored = [signal.SIGPIPE, signal.SIGINT, signal.SIGTERM]  # what Python or we changed
    return os.posix_spawn(
        argv[0], argv, environ, file_actions=actions, setpgroup=0, setsigdef=restored
    )


def kill_group(pid: int, number: int) -> None:
    """Signal the process group that `spawn` made; harmless when it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


class Command:
    """A running shell command: its output, capped, and its exit code."""

    def __init__(self, command: str, environ: Mapping[str, str], moment: InterruptSignal) -> None:
        self._moment = moment
        self._outputs = (bytearray(), bytearray())
        self._open = 2
        self.truncated = False
        self.exit_code: int | None = None
        pipes = os.pipe(), os.pipe()
        try:
            argv = ["/bin/sh", "-c", command]
            self._pid = spawn(argv, environ, None, pipes[0][1], pipes[1][1])
        finally:
            for _reader, writer in pipes:
                os.close(writer)
        for output, (reader, _writer) in zip(self._outputs, pipes):  # noqa: B905 -- Python 3.9
            self._thread(self._drain, reader, output)
        self._thread(self._reap)

    def finish(self) -> None:
        """Wait until it has ended and its output has arrived.

        Raises:
            Interrupted: The turn was interrupted; the command and its group are ended then.

        """
        try:
            self._moment.wait(lambda: self.exit_code is not None)
            # a background process may hold the pipes open indefinitely
            self._moment.wait(lambda: not self._open, STRAGGLER_SECONDS)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        kill_group(self._pid, signal.SIGTERM)
        if not self._moment.wait_regardless(lambda: not self._open, TERM_SECONDS):
            kill_group(self._pid, signal.SIGKILL)

    def output(self) -> tuple[str, str]:
        with self._moment.condition:
            out, err = (bytes(output).decode(errors="replace") for output in self._outputs)
        return out, err

    def _thread(self, work: object, *args: object) -> None:
        # daemons: what a command left behind must not keep the agent alive
        threading.Thread(target=work, args=args, daemon=True).start()  # pyright: ignore[reportArgumentType]

    def _drain(self, reader: int, output: bytearray) -> None:
        with open(reader, "rb", buffering=0) as stream:
            while True:
                piece = stream.read(65536)
                with self._moment.condition:
                    if not piece:
                        self._open -= 1
                        self._moment.condition.notify_all()
                        return
                    room = OUTPUT_LIMIT - len(output)
                    output += piece[:room]
                    self.truncated = self.truncated or len(piece) > room

    def _reap(self) -> None:
        _pid, status = os.waitpid(self._pid, 0)
        with self._moment.condition:
            self.exit_code = os.waitstatus_to_exitcode(status)
            self._moment.condition.notify_all()
