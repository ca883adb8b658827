"""A workspace and its repository of snapshots."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.runtime.snapshots.shadow_repository import ShadowRepository
from oubliette.runtime.snapshots.snapshot_records import (
    Moment,
    Restored,
    Snapshot,
    SnapshotLabel,
    SnapshotLimits,
)
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Tree = dict[bytes, tuple[str, int, bytes]]


def tree_of(folder: Path) -> Tree:
    """All that is below a folder: path → kind, mode, content."""
    found: Tree = {}
    top = os.fsencode(folder)
    for path, folders, files in os.walk(top):
        for name in (*folders, *files):
            whole = os.path.join(path, name)
            status = os.lstat(whole)
            below = os.path.relpath(whole, top)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                found[below] = "link", 0, os.readlink(whole)
            elif stat.S_ISDIR(status.st_mode):
                found[below] = "folder", mode, b""
            elif stat.S_ISREG(status.st_mode):
                found[below] = "file", mode, Path(os.fsdecode(whole)).read_bytes()
            else:
                found[below] = "other", mode, b""
    return found


class Shadow:
    """A workspace with its repository; `turn` ends a turn of session `ses_1`."""

    def __init__(self, base: Path, git: GitProgram, jobs: WorkspaceJobs, **limits: Any) -> None:
        self.workspace = base / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.folder = base / "snapshots.git"
        self.git = git
        self.jobs = jobs
        self.limits = SnapshotLimits(**limits)
        self.repository = ShadowRepository(self.folder, self.workspace, git, jobs, self.limits)

    async def turn(self, number: int, moment: Moment = "end") -> Snapshot:
        label = SnapshotLabel(
            session_id="ses_1", turn=number, moment=moment, agent="scripted", when=1_700_000_000.0
        )
        return await self.repository.take(label)

    async def restore(self, number: int) -> Restored:
        return await self.repository.restore(f"refs/oubliette/ses_1/{number}")

    async def run(self, *arguments: str) -> str:
        output = await self.git.run(self.folder, *arguments, seconds=60.0)
        return output.decode(errors="surrogateescape")

    def tree(self) -> Tree:
        return tree_of(self.workspace)


@pytest.fixture
def git() -> GitProgram:
    found = GitProgram.find()
    if found is None:
        pytest.skip("needs git")
    return found


@pytest.fixture
async def jobs() -> AsyncIterator[WorkspaceJobs]:
    made = WorkspaceJobs()
    yield made
    await made.aclose()


@pytest.fixture
def shadow_of(tmp_path: Path, git: GitProgram, jobs: WorkspaceJobs) -> Callable[..., Shadow]:
    def make(name: str = "one", **limits: Any) -> Shadow:
        return Shadow(tmp_path / name, git, jobs, **limits)

    return make


@pytest.fixture
def shadow(shadow_of: Callable[..., Shadow]) -> Shadow:
    return shadow_of()
