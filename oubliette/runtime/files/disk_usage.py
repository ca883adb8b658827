"""Disk usage of a folder, measured without trusting its content.

An agent owns the measured files, and may change them during the scan: folders are opened from their
parent, links are never followed, and the time is bounded. At most two are open at a time, however
deep they are nested: the scan goes back up by `..`, if that is the folder that it came from.
What was not counted makes the result a lower bound.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MAX_LINKED: Final = 1_000_000  # files with several names that are tracked, to be counted once
BLOCK: Final = 512  # bytes; st_blocks counts these not the file system's blocks (stat(2))

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a measurement."""

    bytes: int
    entries: int
    complete: bool
    """False: the time was too short, a folder could not be read, or one was moved meanwhile."""


class _Count:
    def __init__(self, deadline: float, stopped: Callable[[], bool]) -> None:
        self.deadline = deadline
        self.stopped = stopped
        self.bytes = self.entries = 0
        self.complete = self.complete_in_time = True
        self.linked: set[tuple[int, int]] = set()

    def add(self, status: os.stat_result) -> None:
        self.entries += 1
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            name = (status.st_dev, status.st_ino)
            if name in self.linked:
                return
            if len(self.linked) < MAX_LINKED:
                self.linked.add(name)
        self.bytes += status.st_blocks * BLOCK

    @property
    def late(self) -> bool:
        if self.entries % 64:
            return False
        return self.stopped() or time.monotonic() > self.deadline


def _never() -> bool:
    return False


def measure(
    folders: Iterable[Path], *, seconds: float, stopped: Callable[[], bool] = _never
) -> DiskUsage:
    """The disk usage of all `folders`, as `du` counts it. Blocks about `seconds` at most.

    A missing folder counts as empty. It ends early once it is `stopped`.
    """
    count = _Count(time.monotonic() + seconds, stopped)
    for folder in folders:
        try:
            top = os.open(folder, _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            count.complete = count.complete and error.errno == errno.ELOOP
            continue
        _walk(top, count)
    return DiskUsage(bytes=count.bytes, entries=count.entries, complete=count.complete)


def _walk(top: int, count: _Count) -> None:
    """Count everything below `top`, which is closed."""
    fd, device = top, os.fstat(top).st_dev
    # Of each folder on the way: what it is, and the names of the folders in it that are to come.
    way: list[tuple[tuple[int, int], list[str]]] = []
    try:
        way.append((_identity(fd), _counted(fd, device, count)))
        while count.complete_in_time:
            if way[-1][1]:
                below = _opened(way[-1][1].pop(), fd, count)
                if below is not None:
                    os.close(fd)
                    fd = below
                    way.append((_identity(fd), _counted(fd, device, count)))
                continue
            way.pop()
            if not way:
                return
            above = _opened("..", fd, count)
            if above is None:
                return
            os.close(fd)
            fd = above
            if _identity(fd) != way[-1][0]:
                count.complete = False  # it was moved: what is above is not ours to look into
                return
    finally:
        os.close(fd)


def _counted(fd: int, device: int, count: _Count) -> list[str]:
    """Count the entries of one folder; return the names of the folders in it."""
    folders: list[str] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if count.late:
                    count.complete = count.complete_in_time = False
                    return []
                with contextlib.suppress(FileNotFoundError):  # it was removed in between
                    status = entry.stat(follow_symlinks=False)
                    count.add(status)
                    if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
                        folders.append(entry.name)
    except OSError:
        count.complete = False
    return folders


def _opened(name: str, fd: int, count: _Count) -> int | None:
    """Open a folder in `fd`; None: it is none any more, or may not be read."""
    try:
        return os.open(name, _FOLDER, dir_fd=fd)
    except (FileNotFoundError, NotADirectoryError):
        return None  # it was removed or replaced in between
    except OSError as error:
        count.complete = count.complete and error.errno == errno.ELOOP
        return None


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
