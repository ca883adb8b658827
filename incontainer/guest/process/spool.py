"""Buffer of a process's unacknowledged output: in memory first, then in a file.

Bytes are numbered from the process's first one. The newest are in memory; the overflow moves to a
file used as a ring, so that neither ever grows above its size. Nothing is dropped: when both are
full `room` is 0, and the owner stops reading the process.
"""

from __future__ import annotations

import os

MEMORY_BYTES = 1 << 20
FILE_BYTES = 64 << 20
SPILL = 256 * 1024  # bytes moved to the file at a time, so that small writes do not each cost one


class Spool:
    """The unacknowledged bytes `[start, end)` of one stream."""

    def __init__(self, folder: str, file_bytes: int = FILE_BYTES) -> None:
        self.start = 0  # offset of the first byte kept: everything below was acknowledged
        self.end = 0  # offset after the last byte written
        self._folder = folder
        self._memory = bytearray()  # [end - len(memory), end)
        self._memory_bytes = min(MEMORY_BYTES, file_bytes)
        self._file_bytes = file_bytes
        self._fd = -1
        self._file_failed = False

    @property
    def kept(self) -> int:
        """Number of bytes kept, in memory and on disk."""
        return self.end - self.start

    @property
    def on_disk(self) -> int:
        """Number of bytes kept in the file."""
        return self.kept - len(self._memory)

    @property
    def room(self) -> int:
        """Number of bytes that can still be written."""
        if self._file_failed:
            return max(0, self._memory_bytes - len(self._memory))
        return max(0, self._memory_bytes + self._file_bytes - self.kept)

    def write(self, data: bytes) -> None:
        """Append `data`, which must not be longer than `room`."""
        self._memory += data
        self.end += len(data)
        if len(self._memory) > self._memory_bytes:
            self._spill()

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes from `offset` on, which must be kept; empty at the end."""
        if not self.start <= offset <= self.end:
            raise ValueError(f"offset {offset} is outside {self.start}..{self.end}")
        base = self.end - len(self._memory)
        if offset >= base:
            return bytes(memoryview(self._memory)[offset - base : offset - base + limit])
        place = offset % self._file_bytes
        size = min(limit, base - offset, self._file_bytes - place)
        return os.pread(self._fd, size, place)

    def ack(self, offset: int) -> None:
        """Discard everything below `offset`."""
        if offset <= self.start:
            return
        base = self.end - len(self._memory)
        self.start = min(offset, self.end)
        if self.start >= base:
            del self._memory[: self.start - base]
            self.close_file()
        self._file_failed = False  # acknowledging may have made room on a full disk

    def close_file(self) -> None:
        """Close the file and free its disk space: it is unlinked already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _spill(self) -> None:
        """Move the oldest bytes from memory to the file, in whole `SPILL`s where possible."""
        room = self._file_bytes - self.on_disk
        size = min(room, max(SPILL, len(self._memory) - self._memory_bytes), len(self._memory))
        try:
            if self._fd < 0:
                self._fd = _nameless_file(self._folder)
            base = self.end - len(self._memory)
            while size > 0:
                place = base % self._file_bytes
                piece = self._memory[: min(size, self._file_bytes - place)]
                written = os.pwrite(self._fd, piece, place)
                del self._memory[:written]
                base += written
                size -= written
        except OSError:
            # A full disk blocks the process; it does not lose a byte
            self._file_failed = True


def _nameless_file(folder: str) -> int:
    """Open a new file, 0600, unlinked before anything is written: no other process can open it."""
    path = os.path.join(folder, f".spool-{os.urandom(8).hex()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    os.unlink(path)
    return fd
