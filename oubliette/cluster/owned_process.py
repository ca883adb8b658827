"""OwnedProcess, a process that outlives its starter and is ended by a later command.

It is identified by its id and the time of its start, so that another process which has got the same
id is never ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from oubliette.errors import RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

END_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.1
_SHOWN: Final = 1000
"""Characters of the end of a log, in an error."""


class OwnedProcess(msgspec.Struct, frozen=True):
    """A process that was started for the cluster."""

    pid: int
    started: int
    """Time of its start, in the kernel's ticks since it booted."""

    @classmethod
    def of(cls, pid: int) -> OwnedProcess:
        return cls(pid, _start_time(pid))

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.started != 0 and _start_time(self.pid) == self.started

    def end(self, number: int = signal.SIGTERM, seconds: float = END_SECONDS) -> bool:
        """Send it a signal, and kill it with its process group if it does not end in this time.

        Returns:
            Whether it ended in time, or had ended before.
        """
        if not self.runs:
            return True
        try:
            watched = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            signal.pidfd_send_signal(watched, number)
            if select.select([watched], [], [], seconds)[0]:
                return True
            os.killpg(self.pid, signal.SIGKILL)
            select.select([watched], [], [], seconds)
        except ProcessLookupError:
            return True
        finally:
            os.close(watched)
        return False


def launch(
    command: Sequence[str],
    out: Path,
    errors: Path,
    *,
    complete: Callable[[str], bool],
    seconds: float,
    env: Mapping[str, str] | None = None,
    user: tuple[int, int] | None = None,
    on_start: Callable[[OwnedProcess], object] = lambda _: None,
) -> tuple[OwnedProcess, str]:
    """Start a process that outlives this one; return it with its output, once that is complete.

    If it ends before, takes too long, or this is interrupted, the process is ended.

    Args:
        command: Program and arguments; everybody on this machine can read them.
        out: File for its output, which is read while it grows.
        errors: File for its log.
        complete: Whether the output is complete; may raise.
        seconds: Time for that.
        env: Its environment; None: that of this process.
        user: User and group that it runs as; None: those of this process.
        on_start: Called with the process before anything is waited for.

    Raises:
        RuntimeFailure: it ended, or its output was not complete in time; has the end of its log.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with _private(out) as output, _private(errors) as log, _interrupts_held():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=env,
                start_new_session=True,
                user=None if user is None else user[0],
                group=None if user is None else user[1],
                extra_groups=None if user is None else [],
            )
            owned = OwnedProcess.of(process.pid)
            on_start(owned)
        if (text := _completed(process, out, complete, seconds)) is not None:
            return owned, text
    except BaseException:
        if process is not None:
            _end_group(process)
        raise
    why = f"was not ready in {seconds:g} s" if owned.runs else "has ended"
    _end_group(process)
    last = errors.read_text(encoding="utf-8", errors="replace")[-_SHOWN:].strip()
    raise RuntimeFailure(f"{errors.stem} {why}: {last}", hint=f"see {errors}")


@contextlib.contextmanager
def _interrupts_held() -> Generator[None]:
    """Let SIGINT and SIGTERM interrupt the main thread at the end of the block, not within it.

    Without a record of its id, a process that was started cannot be ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        # None: it was not set from Python, and could not be restored.
        if (handler := signal.getsignal(number)) not in {signal.SIG_IGN, None}
    }
    try:
        for number in handlers:
            signal.signal(number, lambda came_, _: came.append(came_))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process in order, then all that it has left in its process group."""
    OwnedProcess.of(process.pid).end()
    # Its id is the group's, and no other process gets it before this one is waited for.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(END_SECONDS)


def _completed(
    process: subprocess.Popen[bytes], out: Path, complete: Callable[[str], bool], seconds: float
) -> str | None:
    """Return the output of a process once it is complete; None if that takes too long."""
    # Files give no notice of what is appended; the process itself gives one of its end.
    ended = os.pidfd_open(process.pid)
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            text = out.read_text(encoding="utf-8")
            if complete(text):
                return text
            if select.select([ended], [], [], _LOOK_SECONDS)[0]:
                return None
    finally:
        os.close(ended)
    return None


def _private(path: Path) -> BinaryIO:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    return os.fdopen(fd, "wb")


def _start_time(pid: int) -> int:
    """The time of a process's start, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in {"Z", "X"} else int(fields[19])
