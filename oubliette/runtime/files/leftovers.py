"""Cleanup of deletions that a killed server left unfinished: found at a start, removed later.

A project, a workspace or a session is deleted in the store first and on disk after that, so files
of a deleted record are the rest of an interrupted removal. Files unknown to the store are left
alone, except for homes and logs of sessions, whose rows are removed with them. Snapshots of a
deleted workspace stay as long as its project.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import ids
from oubliette.errors import OublietteError
from oubliette.runtime.files import new_workspaces, safe_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from oubliette.runtime.files.project_dirs import Folders
    from oubliette.runtime.store.connection import StoreConnection

log = structlog.get_logger(__name__)

STDERR: Final = ".stderr.log"
HOME_SNAPSHOTS: Final = ".home.git"
_HALF_WRITTEN: Final = re.compile(r"\.(config|metadata|opencode)\.json\.[0-9]+\.new")


class Deleted(msgspec.Struct, frozen=True):
    """Deleted records of the store, and the existing sessions."""

    live: frozenset[str]
    """Existing projects."""
    projects: frozenset[str]
    workspaces: frozenset[str]
    sessions: frozenset[str]
    """All existing sessions."""


def deleted(connection: StoreConnection) -> Deleted:
    """Read them; for `Reader.run`."""

    def column(sql: str) -> frozenset[str]:
        return frozenset(row[0] for row in connection.execute(sql))

    return Deleted(
        live=column("SELECT id FROM projects WHERE deleted_at IS NULL"),
        projects=column("SELECT id FROM projects WHERE deleted_at IS NOT NULL"),
        workspaces=column("SELECT id FROM workspaces WHERE deleted_at IS NOT NULL"),
        sessions=column("SELECT id FROM sessions"),
    )


def find(folders: Folders, known: Deleted) -> list[Path]:
    """Return the leftovers, before further deletions. Blocks; reads names only."""
    found: list[Path] = []
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
            found += [place / name for name in _names(place) if _HALF_WRITTEN.fullmatch(name)]
        new = folders.repositories / project
        found += [new / name for name in _names(new) if new_workspaces.NAME.fullmatch(name)]
        snapshots = folders.snapshots / project
        found += [
            snapshots / name
            for name in _names(snapshots)
            if name.endswith(HOME_SNAPSHOTS)
            and _is_gone(name.removesuffix(HOME_SNAPSHOTS), known.sessions)
        ]
        homes = folders.homes / project
        found += _matching(homes, (n for n in _names(homes) if _is_gone(n, known.sessions)))
    found += [
        folders.logs / name
        for name in _names(folders.logs)
        if name.endswith(STDERR) and _is_gone(name.removesuffix(STDERR), known.sessions)
    ]
    return found


def _is_gone(name: str, sessions: frozenset[str]) -> bool:
    return ids.is_id(name, ids.SESSION) and name not in sessions


def _matching(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    wanted = frozenset(names)
    for name in _names(folder):
        if name in wanted or safe_files.GONE.fullmatch(name):
            yield folder / name


def _names(folder: Path) -> list[str]:
    try:
        with safe_files.opened(folder) as fd:
            return os.listdir(fd)  # noqa: PTH208 -- of a descriptor
    except (OSError, OublietteError):
        return []  # it is missing, or an agent has replaced it


class Clearance:
    """Removal of the leftovers in a thread, so that a large project does not delay the server."""

    def __init__(self, found: list[Path]) -> None:
        self._found = found
        self._stopping = False
        self._task = asyncio.create_task(asyncio.to_thread(self._clear), name="leftovers")

    def _clear(self) -> None:
        removed = 0
        for path in self._found:
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
