"""Copies of files and whole folders from this machine to a workspace, and back.

What an agent made is not trusted on this machine: its links are not made here, no link that is here
is followed below the folder that receives them, and each file takes its place when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from oubliette.api.files.records import CopiedFiles
from oubliette.errors import Conflict, InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from oubliette.api.files.file_calls import FileCalls

    OnFile = Callable[[str, int], object]

EXECUTE: Final = 0o111
PERMISSIONS: Final = 0o666


class Copying:
    """One copy that is under way, and its count.

    Args:
        calls: Calls for the files of the workspace.
        on_file: Called with the path and the bytes of each file that was copied.
    """

    def __init__(self, calls: FileCalls, on_file: OnFile | None) -> None:
        self._calls = calls
        self._on_file = on_file
        self._files = 0
        self._bytes = 0
        self._skipped: list[str] = []

    def _copied(self, path: str, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._on_file is not None:
            self._on_file(path, size)

    @property
    def result(self) -> CopiedFiles:
        """The count so far."""
        return CopiedFiles(files=self._files, bytes=self._bytes, skipped=tuple(self._skipped))

    # To the workspace

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or folder of this machine; links in a folder are skipped."""
        found = await to_thread.run_sync(source.stat)
        if stat.S_ISREG(found.st_mode):
            await self._send(source, target)
            return
        if not stat.S_ISDIR(found.st_mode):
            raise InvalidParameter(f"{source} is neither a file nor a folder", field="source")
        folders = [(source, target)]
        while folders:
            folder, place = folders.pop()
            if place:
                await self._calls.call("file_write", place, folder=True)
            for path, kind in await to_thread.run_sync(_names, folder):
                inner = below(place, path.name)
                if kind == "folder":
                    folders.append((path, inner))
                elif kind == "file":
                    await self._send(path, inner)
                else:
                    self._skipped.append(str(path))

    async def _send(self, source: Path, target: str) -> None:
        file = await to_thread.run_sync(_open, source)
        size = 0

        async def read(length: int) -> bytes:
            nonlocal size
            piece = await to_thread.run_sync(file.read, length)
            size += len(piece)
            return piece

        with file:
            executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
            await self._calls.send(target, read, executable=executable)
        self._copied(str(source), size)

    # From the workspace

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or folder of the workspace; links in a folder are skipped."""
        own, entries = await self._calls.listing(source)
        if own.kind == "file":
            await self._fetch(source, target)
            return
        if own.kind != "folder":
            raise InvalidParameter(f"{source} is neither a file nor a folder", field="source")
        await to_thread.run_sync(_make_folder, target, True)
        folders = [(source, target, entries)]
        while folders:
            place, folder, entries = folders.pop()
            for entry in entries:
                inner, path = below(place, entry.name), folder / entry.name
                if entry.kind == "folder":
                    await to_thread.run_sync(_make_folder, path, False)
                    folders.append((inner, path, (await self._calls.listing(inner))[1]))
                elif entry.kind == "file":
                    await self._fetch(inner, path)
                else:
                    self._skipped.append(inner)

    async def _fetch(self, source: str, target: Path) -> None:
        part = await to_thread.run_sync(_PartHere, target)
        try:
            executable = await self._calls.fetch(source, part.begin, part.take)
            await to_thread.run_sync(part.publish, executable)
        finally:
            part.close()
        self._copied(str(target), part.size)


def below(folder: str, name: str) -> str:
    """Return the path of a name in a folder of a workspace; the workspace itself is empty."""
    return f"{folder.rstrip('/')}/{name}" if folder else name


class _PartHere:
    """File beside its final name on this machine, until it is whole."""

    def __init__(self, target: Path) -> None:
        if target.is_dir() and not target.is_symlink():
            raise Conflict(f"{target} is a folder", hint="give the name of the file in it")
        fd, name = tempfile.mkstemp(prefix=".oubliette-", suffix=".part", dir=target.parent)
        self._file = os.fdopen(fd, "wb")
        self._path: Path | None = Path(name)
        self._target = target
        self.size = 0

    async def begin(self) -> None:
        await to_thread.run_sync(self._restart)

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.size = 0

    async def take(self, data: bytes) -> None:
        await to_thread.run_sync(self._file.write, data)
        self.size += len(data)

    def publish(self, executable: bool) -> None:  # noqa: FBT001 - called through a thread
        assert self._path is not None
        self._file.flush()
        mode = PERMISSIONS | (EXECUTE if executable else 0)
        os.fchmod(self._file.fileno(), mode & ~_umask())
        self._file.close()
        self._path.replace(self._target)
        self._path = None

    def close(self) -> None:
        self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _umask() -> int:
    """Return the mask for new files, without the moment in which setting it would change it."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(next(ln for ln in lines.splitlines() if ln.startswith("Umask:"))[6:], 8)
    return 0o022


def _open(path: Path) -> IO[bytes]:
    # The path may have become a pipe since it was listed
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Conflict(f"{path} is no regular file any more")
    return os.fdopen(fd, "rb")


def _names(folder: Path) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            regular = entry.is_file(follow_symlinks=False)
            kind = "file" if regular else "special"
            if entry.is_dir(follow_symlinks=False):
                kind = "folder"
            found.append((folder / entry.name, kind))
    return sorted(found)


def _make_folder(path: Path, linked: bool) -> None:  # noqa: FBT001 - called through a thread
    """Make a folder, unless one is there; a link to one is accepted if `linked`."""
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir() or (path.is_symlink() and not linked):
            raise Conflict(
                f"{path} exists and is no folder", hint="remove it, or choose another target"
            ) from None
