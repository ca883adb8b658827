"""Locks on files that a process holds, and does not pass to one that it forks.

A lock of flock(2) belongs to the opened file, which a forked process has open too: a worker of a
pool would keep a home locked after the program that opened it has closed it, or was killed.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

_held: Final[set[int]] = set()


def hold(fd: int) -> None:
    """Note the descriptor of a locked file, which ends with `release`."""
    _held.add(fd)


def release(fd: int) -> None:
    """Release the lock, for processes that were forked too, and close the file."""
    if fd in _held:  # else this process was forked, and the lock is another's
        _held.discard(fd)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _leave_to_the_other() -> None:
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_the_other)
