"""How much room a folder takes on the disk, measured without trusting what is in it.

An agent owns what is measured, and may change it meanwhile: folders are opened from their parent,
links are never followed, and both time and depth are bounded. What could not be counted in time
makes the answer a lower bound.
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
MAX_LINKED: Final = 1_000_000  # files with several names that are remembered, to be counted once
BLOCK: Final = 512  # bytes; st_blocks counts these whatever the file system's own are (stat(2))

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    bytes: int
    entries: int
    complete: bool
    """False: there was no time for all of it, or it is nested too deeply."""


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
    """The room that all of `folders` take, as `du` counts it. Blocks, for about `seconds` at most.

    One that is not there takes none.
    """
    count = _Count(time.monotonic() + seconds)
    for folder in folders:
        with contextlib.suppress(OSError):
            _walk(os.open(folder, _FOLDER), count)
    return DiskUsage(bytes=count.bytes, entries=count.entries, complete=count.complete)


class _Level:
    """One open folder on the way down."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.entries: Any = None  # of scandir, which keeps a descriptor of its own
        with contextlib.suppress(OSError):
            self.entries = os.scandir(fd)

    def next(self) -> str | None:
        """The name of one more entry; None at the end."""
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
            except OSError:  # it is gone, or something else by now
                continue
    finally:
        for level in way:
            level.close()
