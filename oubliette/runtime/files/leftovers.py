"""Cleanup of deletions that a killed server left unfinished: found and removed after a start.

A project, a workspace or a session is deleted in the store first and on disk after that, so files
of a deleted record are the rest of an interrupted removal. Files unknown to the store are left
alone, except for homes and logs of sessions, whose rows are removed with them. Snapshots of a
deleted workspace stay as long as its project.

All that was ever stored is looked at, so this is done beside the first requests, while other files
are made and removed: what was begun after the start is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import ids
from oubliette.errors import OublietteError
from oubliette.runtime.files import new_workspaces, safe_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.runtime.files.project_dirs import Folders
    from oubliette.runtime.store.connection import StoreConnection
    from oubliette.runtime.store.reader import Reader

log = structlog.get_logger(__name__)

STDERR: Final = ".stderr.log"
HOME_SNAPSHOTS: Final = ".home.git"
_ASKED_AT_ONCE: Final = 500
"""Sessions that one statement asks for."""
_HALF_WRITTEN: Final = re.compile(r"\.(config|metadata|opencode)\.json\.[0-9]+\.new")


class Deleted(msgspec.Struct, frozen=True):
    """Records that were deleted before the start.

    Until it has its files, a project or workspace that is being made is a deleted one too.
    """

    live: frozenset[str]
    """Existing projects."""
    projects: frozenset[str]
    workspaces: frozenset[str]


class Found(msgspec.Struct, frozen=True):
    """An entry that may be removed."""

    path: Path
    session_id: str | None = None
    """Only if this session does not exist."""


def deleted(connection: StoreConnection, started: float) -> Deleted:
    """Read those of before `started` (wall seconds); for `Reader.run`."""

    def column(sql: str, *values: float) -> frozenset[str]:
        return frozenset(row[0] for row in connection.execute(sql, values))

    return Deleted(
        live=column("SELECT id FROM projects WHERE deleted_at IS NULL"),
        projects=column("SELECT id FROM projects WHERE deleted_at < ?", started),
        workspaces=column("SELECT id FROM workspaces WHERE deleted_at < ?", started),
    )


def without_sessions(connection: StoreConnection, found: list[Found]) -> list[Path]:
    """Return the paths of those whose session does not exist; for `Reader.run`.

    Asked after they were found: a session is stored before it has files.
    """
    wanted = sorted({each.session_id for each in found if each.session_id is not None})
    existing: set[str] = set()
    for start in range(0, len(wanted), _ASKED_AT_ONCE):
        some = wanted[start : start + _ASKED_AT_ONCE]
        holes = ", ".join("?" * len(some))
        rows = connection.execute(f"SELECT id FROM sessions WHERE id IN ({holes})", some)  # noqa: S608
        existing.update(row[0] for row in rows)
    return [each.path for each in found if each.session_id not in existing]


def find(folders: Folders, known: Deleted, started: float) -> list[Found]:
    """Return what may be left of deletions before `started` (wall seconds). Blocks."""
    found: list[Found] = []
    configs = folders.configs.projects
    tops = (
        *(folders.projects, folders.homes, folders.roots),
        *(folders.snapshots, folders.repositories, configs),
    )
    for top in tops:
        found += _matching(top, known.projects)
    for project in known.live.intersection(name for top in tops for name in _names(top)):
        for place in (
            folders.projects / project / "workspaces",
            configs / project / "workspaces",
            folders.roots / project,
        ):
            found += _matching(place, known.workspaces)
        for place in (folders.projects / project, configs / project):
            found += _unfinished(place, _HALF_WRITTEN, started)
        found += _unfinished(folders.repositories / project, new_workspaces.NAME, started)
        found += _of_sessions(folders.snapshots / project, HOME_SNAPSHOTS)
        homes = folders.homes / project
        found += _of_sessions(homes)
        found += _matching(homes, frozenset())
    found += _of_sessions(folders.logs, STDERR)
    return found


def _of_sessions(folder: Path, suffix: str = "") -> Iterator[Found]:
    for name in _names(folder):
        session_id = name.removesuffix(suffix)
        if name.endswith(suffix) and ids.is_id(session_id, ids.SESSION):
            yield Found(folder / name, session_id)


def _matching(folder: Path, names: frozenset[str]) -> Iterator[Found]:
    for name in _names(folder):
        if name in names or safe_files.GONE.fullmatch(name):
            yield Found(folder / name)


def _unfinished(folder: Path, names: re.Pattern[str], started: float) -> Iterator[Found]:
    for name in _names(folder):
        if names.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):  # it was finished meanwhile
                if (folder / name).lstat().st_ctime < started:
                    yield Found(folder / name)


def _names(folder: Path) -> list[str]:
    try:
        with safe_files.opened(folder) as fd:
            return os.listdir(fd)  # noqa: PTH208 -- of a descriptor
    except (OSError, OublietteError):
        return []  # it is missing, or an agent has replaced it


class Clearance:
    """Search for leftovers and their removal, in threads. `aclose` it at the end.

    Args:
        folders: Of the home.
        reader: Of the store.
        started: Wall second before which nothing was begun by this server.
    """

    def __init__(self, folders: Folders, reader: Reader, started: float) -> None:
        self._folders = folders
        self._reader = reader
        self._started = started
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name="leftovers")

    async def _run(self) -> None:
        try:
            known = await self._reader.run(deleted, self._started)
            found = await asyncio.to_thread(find, self._folders, known, self._started)
            paths = await self._reader.run(without_sessions, found)
        except OublietteError as error:  # the next start finds them
            log.warning("leftovers cannot be looked for", reason=str(error))
            return
        await asyncio.to_thread(self._clear, paths)

    def _clear(self, paths: list[Path]) -> None:
        removed = 0
        for path in paths:
            if self._stopping:
                return  # the next server finds the rest
            try:
                with safe_files.opened(path.parent) as parent:
                    safe_files.remove(parent, path.name, lambda: not self._stopping)
                removed += 1
            except FileNotFoundError:
                continue
            except OublietteError as error:
                log.warning("a leftover cannot be removed", path=str(path), reason=str(error))
        if removed:
            log.info("removed what a killed server has left", entries=removed)

    async def aclose(self) -> None:
        """Stop after the folder in progress."""
        self._stopping = True
        await self._task
