"""Copies of snapshots as configured with `cluster.snapshots`, and the end of those of projects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.snapshot_news import HOME, Key
from oubliette.errors import OublietteError
from oubliette.runtime.repositories.served_view import ServedSnapshots
from oubliette.runtime.snapshots.bundles import BundledCopies
from oubliette.runtime.snapshots.ref_files import refs_below
from oubliette.runtime.snapshots.second_place import SecondPlace
from oubliette.runtime.snapshots.shadow_repository import REFS, ShadowRepository
from oubliette.runtime.snapshots.shared_folder import SharedFolder
from oubliette.runtime.snapshots.snapshot_records import SnapshotLimits

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs
    from oubliette.runtime.store.reader import Reader

FORGET_SECONDS: Final = 3600.0
"""Time between two looks for copies of deleted projects, that were left by a server that ended."""

log = structlog.get_logger(__name__)


def second_place(context: ActorContext, git: GitProgram) -> SecondPlace | None:
    """Return the copies of this server's snapshots; None: it is alone, or keeps none."""
    config = context.config
    place, seconds = config.cluster.snapshots, config.snapshots.seconds
    if not place or context.homes is None:
        return None
    if place.startswith("/"):
        return SecondPlace(SharedFolder(Path(place), git, seconds), git, seconds)
    assert context.copies is not None, "the node makes it for these places"
    most = config.cluster.snapshots_max_bytes
    return SecondPlace(BundledCopies(context.copies, git, seconds, most), git, seconds)


def served_snapshots(folder: Path) -> tuple[ServedSnapshots, ...]:
    """Return what the repositories below a project's folder have, without those of HOMEs. Blocks.

    Raises:
        OSError: one of them cannot be read.
    """
    found = sorted(each for each in folder.glob("*.git") if not each.stem.endswith(HOME))
    return tuple(
        ServedSnapshots(
            workspace_id=each.stem, folder=str(each), refs=refs_below(each, f"{REFS['files']}/")
        )
        for each in found
    )


def repository_of(
    context: ActorContext,
    git: GitProgram,
    jobs: WorkspaceJobs,
    key: Key,
    paths: tuple[str, ...],
) -> ShadowRepository:
    """Return the repository of a workspace, or that of the files of an agent's session.

    Args:
        context: Of the server.
        git: The program.
        jobs: Reads and writes workspaces.
        key: Of the workspace or session.
        paths: The files of the session, in its HOME.
    """
    folders, config = context.folders, context.config
    limits = SnapshotLimits(
        max_file_bytes=config.snapshots.max_file_bytes,
        max_entries=config.snapshots.max_entries,
        max_bytes=config.projects.max_bytes,
        seconds=config.snapshots.seconds,
    )
    project_id, name = key
    if name.endswith(HOME):
        assert paths, "HOME is never stored as a whole"
        folder = folders.session_home(project_id, name.removesuffix(HOME))
    else:
        folder = folders.workspace(project_id, name)
    return ShadowRepository(
        folders.snapshots_of(project_id, name),
        folder,
        git,
        jobs,
        limits,
        durable=config.store.durability == "power",
        only=paths,
    )


async def forget_deleted(copies: BundledCopies | SharedFolder, reader: Reader) -> None:
    """Remove the copies of projects that are deleted, of whichever node they were."""
    try:
        for project_id in await copies.projects():
            project = await reader.project(project_id)
            # What is not known at all is not ours to remove: a folder may be shared with others.
            if project is not None and project.deleted_at is not None:
                await copies.forget(project_id)
    except OublietteError as error:
        log.warning("copies of deleted projects are left for later", reason=str(error))
