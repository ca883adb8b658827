"""Notice that a file was removed, by the kernel's inotify(7)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MOVED_FROM: Final = 0x40
_DELETE: Final = 0x200
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_HEAD: Final = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name that follows
_ROOM: Final = 64 * 1024  # bytes of events that are read at once


class RemovalWatch:
    """Watch of one entry of a folder, for the running loop.

    Args:
        path: The entry.
        removed: Called each time when it was removed or moved away.

    Raises:
        OSError: The system has no inotify, or no room for another watch.
    """

    def __init__(self, path: Path, removed: Callable[[], object]) -> None:
        if sys.platform != "linux":
            raise OSError("this system has no inotify")
        self._name = os.fsencode(path.name)
        self._removed = removed
        self._loop = asyncio.get_running_loop()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(libc.inotify_init1(_FLAGS))
        try:
            folder = os.fsencode(path.parent)
            _checked(libc.inotify_add_watch(self._fd, folder, _MOVED_FROM | _DELETE))
            self._loop.add_reader(self._fd, self._read)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        data = os.read(self._fd, _ROOM)
        place = 0
        while place < len(data) and self._fd >= 0:
            size = _HEAD.unpack_from(data, place)[3]
            place += _HEAD.size
            if data[place : place + size].rstrip(b"\0") == self._name:
                self._removed()
            place += size


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
