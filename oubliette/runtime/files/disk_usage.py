"""Disk usage of a folder, measured without trusting its content.

An agent owns the measured files, and may change them during the scan: folders are opened from their
parent, links are never followed, and both time and depth are bounded. Files not counted in time
make the result a lower bound.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_DEPTH: Final = 256  # folders within folders; as many descriptors are open at a time
MAX_LINKED: Final = 1_000_000  # files with several names that are tracked, to be counted once
BLOCK: Final = 512  # bytes; st_blocks counts these not the file system's blocks (stat(2))

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a measurement."""

    bytes: int
    entries: int
    complete: bool
    """False: the time was too short, or the folders are nested too deeply."""


class _Count:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.bytes = self.entries = 0
        self.complete = True
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
        return self.entries % 64 == 0 and time.monotonic() > self.deadline


def measure(folders: Iterable[Path], *, seconds: float) -> DiskUsage:
    """Return the disk usage of all `folders`, as `du` counts it. Blocks about `seconds` at most.

    A missing folder counts as empty.
    """
    count = _Count(time.monotonic() + seconds)
    for folder in folders:
        with contextlib.suppress(OSError):
            _walk(os.open(folder, _FOLDER), count)
    return DiskUsage(bytes=count.bytes, entries=count.entries, complete=count.complete)


class _Level:
    """One open folder of the scan."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.entries: Any = None  # of scandir, which keeps a descriptor of its own
        with contextlib.suppress(OSError):
            self.entries = os.scandir(fd)

    def next(self) -> str | None:
        """Return the name of the next entry; None at the end."""
        try:
            entry: os.DirEntry[str] | None = next(self.entries, None) if self.entries else None
        except OSError:
            return None
        return None if entry is None else entry.name

    def close(self) -> None:
        if self.entries is not None:
            self.entries.close()
        os.close(self.fd)


def _walk(top: int, count: _Count) -> None:
    """Count everything below `top`, which is closed."""
    device = os.fstat(top).st_dev
    way = [_Level(top)]
    try:
        while way:
            name = way[-1].next()
            if name is None:
                way.pop().close()
                continue
            if count.late:
                count.complete = False
                return
            try:
                status = os.stat(name, dir_fd=way[-1].fd, follow_symlinks=False)
                count.add(status)
                if not stat.S_ISDIR(status.st_mode) or status.st_dev != device:
                    continue
                if len(way) >= MAX_DEPTH:
                    count.complete = False
                    continue
                way.append(_Level(os.open(name, _FOLDER, dir_fd=way[-1].fd)))
            except OSError:  # it was removed or replaced in between
                continue
    finally:
        for level in way:
            level.close()
