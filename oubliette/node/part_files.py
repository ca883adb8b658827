"""Files of the parts of copies that a node holds for others: `<home>/copies/<project>/<part>`.

Other nodes name them, so names are checked to be ids, and no link is followed. All functions block;
call them in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Final

from oubliette.errors import InvalidParameter, LimitExceeded, RuntimeFailure
from oubliette.runtime.snapshots.bundles import size_and_digest
from oubliette.runtime.snapshots.copies import NAME, PART_ID

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

FOLDER: Final = "copies"
"""Folder of a home with the parts."""
LEFT_SECONDS: Final = 3600.0
"""Time after which a part that is in no record is not on its way any more."""
_NEW: Final = ".new"
"""End of the name of a part that is not whole yet."""
_ATTEMPTS: Final = 10
"""Attempts at a new part in a folder that another thread removes at the same moment."""


def path_of(home: Path, project_id: str, part: str) -> Path:
    """The path of a part.

    Raises:
        InvalidParameter: the project or the part has no id.
    """
    if not NAME.fullmatch(project_id) or project_id.startswith("."):
        raise InvalidParameter("it is no id", field="project_id")
    if not PART_ID.fullmatch(part):
        raise InvalidParameter("it is no id", field="part")
    return home / FOLDER / project_id / part


def append(path: Path, offset: int, data: bytes, max_bytes: int) -> None:
    """Append to a part that is not whole yet.

    Raises:
        LimitExceeded: it is larger than the limit.
        RuntimeFailure: `offset` is not its end, or there is no room; 0 begins it again.
    """
    if offset + len(data) > max_bytes:
        path.with_name(path.name + _NEW).unlink(missing_ok=True)
        raise LimitExceeded(f"part {path.name} is larger than {max_bytes} bytes")
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = _open_new(path.with_name(path.name + _NEW), flags)
        try:
            if offset == 0:
                os.ftruncate(fd, 0)
            if os.fstat(fd).st_size != offset:
                raise RuntimeFailure(f"part {path.name} does not go on at {offset}")
            os.lseek(fd, offset, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
    except OSError as error:
        raise RuntimeFailure(f"part {path.name} cannot be held: {error.strerror}") from error


def seal(path: Path, size: int, sha256: str) -> None:
    """Make a part whole, and durable; again: no effect.

    Raises:
        RuntimeFailure: it is not the one with this size and SHA-256.
    """
    new = path.with_name(path.name + _NEW)
    try:
        if path.exists() and not new.exists():
            new = path
        if size_and_digest(new) != (size, sha256):
            new.unlink()
            raise RuntimeFailure(f"part {path.name} did not arrive as it was sent")
        for each, flags in ((new, os.O_RDWR), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
            fd = os.open(each, flags | os.O_CLOEXEC)
            try:
                if each is new:
                    new.replace(path)
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as error:
        raise RuntimeFailure(f"part {path.name} cannot be held: {error.strerror}") from error


def read(path: Path, offset: int, most: int) -> bytes:
    """Return bytes of a part that is whole.

    Raises:
        RuntimeFailure: it is not here.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(most)
    except OSError as error:
        raise RuntimeFailure(f"part {path.name} is not held: {error.strerror}") from error


def remove(home: Path, project_id: str, parts: Collection[str]) -> None:
    """Remove parts of a project, and its folder with the last one.

    Raises:
        InvalidParameter: the project or a part has no id.
    """
    for part in parts:
        path = path_of(home, project_id, part)
        path.unlink(missing_ok=True)
        path.with_name(path.name + _NEW).unlink(missing_ok=True)
    _remove_empty(home / FOLDER / project_id)


def tidy(home: Path, held: Collection[tuple[str, str]]) -> None:
    """Remove what is in no record, unless it may be on its way.

    Args:
        home: The server's home.
        held: Project and id of each part that is in a record.
    """
    folder = home / FOLDER
    if not folder.is_dir():
        return
    old = time.time() - LEFT_SECONDS
    for project in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            for path in project.iterdir():
                known = (project.name, path.name) in held
                if not known and path.lstat().st_mtime < old:
                    path.unlink(missing_ok=True)
        _remove_empty(project)


def remove_projects(home: Path, deleted: Collection[str]) -> None:
    """Remove all parts of projects that are deleted."""
    for project_id in deleted:
        if NAME.fullmatch(project_id) and not project_id.startswith("."):
            shutil.rmtree(home / FOLDER / project_id, ignore_errors=True)


def projects(home: Path) -> list[str]:
    """The projects of which this node holds something."""
    folder = home / FOLDER
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def _open_new(path: Path, flags: int) -> int:
    for _ in range(_ATTEMPTS):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the folder was removed as an empty one
            return os.open(path, flags, 0o600)
    return os.open(path, flags, 0o600)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # it has other parts, or is gone
