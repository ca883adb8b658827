"""Copies of an agent's files from one session's HOME to another's, consistent as a whole.

The agent that has written them may run. What changes while it is copied is copied again, a few
times; SQLite's log of a database may grow, as nothing in it counts before its end was written. No
link is followed, and nothing but plain files and folders is copied.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.files import safe_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MAX_BYTES: Final = 1 << 30
MAX_FILES: Final = 10_000
MAX_DEPTH: Final = 32
ATTEMPTS: Final = 5
CHUNK: Final = 1 << 20
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOG: Final = "-wal"
_INDEX: Final = "-shm"
"""End of the name of what SQLite makes again from the log."""


class Changed(RuntimeFailure):
    """The files changed while they were copied."""


def copy_files(
    source: Path, target: Path, paths: Sequence[str], *, uid: int, renamed: Mapping[str, str]
) -> int:
    """Copy these files and folders of HOME `source`, if they exist, to `target`; return how many.

    What a session's agent begins with is at the end either complete, or not there.

    Args:
        source: HOME of a session, with what its agent has written.
        target: HOME of another session, which no agent has seen.
        paths: Relative, of files and folders.
        uid: Owner of the copies.
        renamed: Texts in names, such as a folder's, and what is to be there in the copies' names.

    Raises:
        RuntimeFailure: they change all the time, are too many or too large, or a disk failed.
        FileNotFoundError: there is no such HOME.
    """
    for attempt in range(1, ATTEMPTS + 1):
        copying = _Copying(uid, renamed)
        try:
            with safe_files.opened(source) as old, safe_files.opened(target) as new:
                try:
                    for path in paths:
                        copying.copy(old, new, PurePosixPath(path).parts)
                    copying.check(old)
                except (OSError, RuntimeFailure):
                    for path in paths:
                        _discard(new, copying.named(path))
                    raise
        except Changed:
            if attempt == ATTEMPTS:
                raise
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RuntimeFailure(f"the agent's files cannot be copied: {error.strerror}") from error
        else:
            return len(copying.seen)
    raise AssertionError("the last attempt returns or raises")


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class _Copying:
    """One attempt."""

    def __init__(self, uid: int, renamed: Mapping[str, str]) -> None:
        self.seen: dict[tuple[str, ...], tuple[int, ...]] = {}
        """Copied files, as they were."""
        self._uid = uid
        self._renamed = renamed
        self._bytes = 0

    def named(self, name: str) -> str:
        for old, new in self._renamed.items():
            name = name.replace(old, new)
        return name

    def copy(self, old: int, new: int, parts: tuple[str, ...]) -> None:
        """Copy what has this path, if there is such a file or folder."""
        *parents, name = parts
        with contextlib.ExitStack() as stack:
            for parent in parents:
                if not _is_folder(old, parent):
                    return
                old = stack.enter_context(safe_files.inner(old, parent, create=False))
                new = stack.enter_context(
                    safe_files.inner(new, self.named(parent), create=True, uid=self._uid)
                )
            self._entry(old, new, name, parts)

    def _entry(self, old: int, new: int, name: str, path: tuple[str, ...]) -> None:
        if len(path) > MAX_DEPTH:
            raise RuntimeFailure("the agent's files are in too many folders in each other")
        mode = _mode(old, name)
        if stat.S_ISDIR(mode):
            with (
                safe_files.inner(old, name, create=False) as folder,
                safe_files.inner(new, self.named(name), create=True, uid=self._uid) as copy,
            ):
                for entry in sorted(os.listdir(folder)):  # noqa: PTH208 -- of a descriptor
                    self._entry(folder, copy, entry, (*path, entry))
        elif stat.S_ISREG(mode) and not name.endswith(_INDEX):
            self._file(old, new, name, path)

    def _file(self, old: int, new: int, name: str, path: tuple[str, ...]) -> None:
        with contextlib.closing(_SourceFile(old, name)) as source:
            found = os.fstat(source.fd)
            if not stat.S_ISREG(found.st_mode):
                raise Changed(f"{name!r} has changed while it was copied")
            self._bytes += found.st_size
            if self._bytes > MAX_BYTES or len(self.seen) >= MAX_FILES:
                raise RuntimeFailure(
                    f"the agent's files are more than {MAX_FILES} or {MAX_BYTES} bytes"
                )
            self.seen[path] = _state(found)
            made = os.open(self.named(name), _NEW, 0o600, dir_fd=new)
            with os.fdopen(made, "wb") as copy:
                for piece in source.pieces(found.st_size):
                    copy.write(piece)
                safe_files.own(made, self._uid)

    def check(self, home: int) -> None:
        """Compare the files with what they were when they were opened.

        Raises:
            Changed: one is another file, or not the same any more.
        """
        for path, before in self.seen.items():
            with contextlib.ExitStack() as stack:
                folder = home
                try:
                    for parent in path[:-1]:
                        folder = stack.enter_context(safe_files.inner(folder, parent, create=False))
                    now = _state(os.stat(path[-1], dir_fd=folder, follow_symlinks=False))
                except (OSError, RuntimeFailure) as error:
                    raise Changed(f"{path[-1]!r} went while it was copied") from error
            same = now == before or (path[-1].endswith(_LOG) and now[:2] == before[:2])
            if not same:
                raise Changed(f"{path[-1]!r} changes too often to be copied")


class _SourceFile:
    """A file that is read; what stands in its place by now may be anything."""

    def __init__(self, folder: int, name: str) -> None:
        try:
            self.fd = os.open(name, _FLAGS, dir_fd=folder)
        except OSError as error:
            raise Changed(f"{name!r} has changed while it was copied") from error

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield its content, of `size` bytes; less if it was cut."""
        while size > 0 and (piece := os.read(self.fd, min(size, CHUNK))):
            size -= len(piece)
            yield piece

    def close(self) -> None:
        os.close(self.fd)


def _mode(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(_mode(folder, name))


def _discard(home: int, path: str) -> None:
    """Remove a copy that is not complete."""
    *parents, name = PurePosixPath(path).parts
    with contextlib.ExitStack() as stack:
        for parent in parents:
            if not _is_folder(home, parent):
                return
            home = stack.enter_context(safe_files.inner(home, parent, create=False))
        safe_files.remove(home, name)
