"""Signals to `oubliette serve` while its server is not there: before it starts, and at its end.

Until then SIGTERM would end the process as if it had failed, and imports alone take half a second:
a service manager that stops what it has just started would be told of a failure. So this is the
first thing that is imported, and it imports nothing itself.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def guard() -> None:
    """Have SIGTERM and SIGINT end the process with exit code 0 from now on, and SIGHUP nothing.

    The server has handlers of its own for the time that it runs, and gives these back.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    # A function, not SIG_IGN: programs that are started would inherit that.
    signal.signal(signal.SIGHUP, _stay)


def ignore() -> None:
    """Have no signal change anything any more: the server has stopped, and the process ends.

    Python takes functions of its own off before it ends, and what comes then would kill it; what
    is ignored it leaves.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    """There is nothing to be put in order; an exception could come in the middle of an import."""
    del number, frame
    os._exit(0)


def _stay(number: int, frame: FrameType | None) -> None:
    del number, frame
