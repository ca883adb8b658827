"""Signals to `oubliette serve` while its server does not handle them: at its start and its end.

Until then SIGTERM would end the process as if it had failed, and imports alone take half a second:
a service manager that stops a service it has just started would see a failure. So this is the first
module imported, and it imports nothing itself.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def reset() -> None:
    """Undo what the program that started this one has set for its signals.

    One that is blocked would be without effect: a server could not be stopped but by SIGKILL. A
    process that ignores SIGCHLD gets no exit codes of its children.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def guard() -> None:
    """Make SIGTERM and SIGINT end the process with exit code 0 from now on, and SIGHUP nothing.

    The server has handlers of its own for the time that it runs, and restores these.
    """
    os.umask(0o022)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    # A function, not SIG_IGN: child programs would inherit that.
    signal.signal(signal.SIGHUP, _stay)
    reset()


def ignore() -> None:
    """Ignore all these signals: the server has stopped, and the process ends.

    Python removes its own handlers before it ends, and a signal after that would kill it; ignored
    signals it leaves ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def interrupt() -> None:
    """Let SIGTERM interrupt a command as Ctrl-C does, so that it ends what it has started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    """Exit without cleanup, which nothing needs; an import may be in progress."""
    del number, frame
    os._exit(0)


def _stay(number: int, frame: FrameType | None) -> None:
    del number, frame
