"""Files of a project, packed on the node that it leaves and unpacked on the node that it goes to.

Agents wrote them: links are kept and never followed, and what is no file, folder or link is left
out. All functions block; call them in a worker thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.errors import RuntimeFailure
from oubliette.runtime.files import safe_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPS: Final = ("projects", "homes", "config/projects", "snapshots", "repositories")
"""Folders of a home that have a folder for each project; the rest is generated."""
FOLDER: Final = "moving"
"""Folder of a home with the packed files of projects that are being moved."""
log = structlog.get_logger("oubliette.node")
_BLOCK: Final = 1024 * 1024


def packed(home: Path, project_id: str) -> Path:
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{project_id}.tar"


def pack(home: Path, project_id: str) -> tuple[Path, str]:
    """Pack the files of a project, in which nothing runs; return the file and its SHA-256.

    Raises:
        RuntimeFailure: they cannot be read, or there is no room.
    """
    path = packed(home, project_id)
    try:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            for top in TOPS:
                name = f"{top}/{project_id}"
                if (home / name).is_dir():
                    archive.add(home / name, name, filter=_regular)
    except (OSError, tarfile.TarError) as error:
        path.unlink(missing_ok=True)
        raise RuntimeFailure(f"project {project_id} cannot be packed: {error}") from error
    return path, digest(path)


def _regular(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    wanted = member.isreg() or member.isdir() or member.issym() or member.islnk()
    return member if wanted else None


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(home: Path, project_id: str, wanted: str) -> None:
    """Unpack the files of a project in the place of those that an earlier stay has left here.

    Raises:
        RuntimeFailure: the packed file is not the one with this SHA-256, has something else in it,
            or cannot be unpacked; nothing of the project is left.
    """
    path = packed(home, project_id)
    if digest(path) != wanted:
        raise RuntimeFailure(f"the files of project {project_id} did not arrive as they were sent")
    fresh = path.with_suffix(".new")
    _clear(fresh)
    fresh.mkdir(mode=0o700)
    try:
        with tarfile.open(path) as archive:
            if hasattr(tarfile, "fully_trusted_filter"):  # not in every Python 3.11
                archive.extraction_filter = tarfile.fully_trusted_filter
            archive.extractall(fresh, members=_own(archive, project_id), numeric_owner=True)  # noqa: S202 - checked
        for top in TOPS:
            _replace(fresh / top / project_id, home / top / project_id)
    except (OSError, tarfile.TarError) as error:
        raise RuntimeFailure(f"project {project_id} cannot be unpacked: {error}") from error
    finally:
        _clear(fresh)
        path.unlink(missing_ok=True)


def _own(archive: tarfile.TarFile, project_id: str) -> Iterator[tarfile.TarInfo]:
    """The members of an archive, as long as all are of the project and under real folders.

    Raises:
        ExtractError: one is not, or its path leads through a link.
    """
    prefixes = tuple(f"{top}/{project_id}" for top in TOPS)
    links: set[str] = set()

    def check(name: str) -> None:
        parts = name.split("/")
        parents = {"/".join(parts[:count]) for count in range(1, len(parts))}
        if (
            ".." in parts
            or parents & links
            or not f"{name}/".startswith(tuple(f"{each}/" for each in prefixes))
        ):
            raise tarfile.ExtractError(f"{name!r} is not of project {project_id}")

    for member in archive:
        check(member.name)
        if member.islnk():
            check(member.linkname)
        elif member.issym():
            links.add(member.name)
        elif not (member.isreg() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name!r} is neither file, folder nor link")
        member.mode &= 0o777
        yield member


def _replace(source: Path, target: Path) -> None:
    if target.is_dir():
        _clear(target)
    if source.is_dir():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        source.rename(target)


def remove(home: Path, project_id: str) -> None:
    """Remove what has arrived of a project that does not live here."""
    discard(home, project_id)
    for top in TOPS:
        _clear(home / top / project_id)


def discard(home: Path, project_id: str) -> None:
    """Remove what was packed or received of a project."""
    path = packed(home, project_id)
    path.unlink(missing_ok=True)
    _clear(path.with_suffix(".new"))


def _clear(folder: Path) -> None:
    """Remove a folder, also one that agents have closed to writing."""
    try:
        with contextlib.suppress(FileNotFoundError), safe_files.opened(folder.parent) as parent:
            safe_files.remove(parent, folder.name)
    except RuntimeFailure as error:
        log.warning("folder cannot be removed", folder=str(folder), reason=error.message)
