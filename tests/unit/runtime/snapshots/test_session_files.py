"""Of HOME, only the declared files of an agent's session are stored and restored."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.snapshots.shadow_repository import ShadowRepository
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel
from tests.unit.runtime.snapshots.conftest import tree_of

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

ONLY = (".agent/sessions", ".data/agent.db", ".data/agent.db-wal")
LABEL = SnapshotLabel(session_id="ses_1", turn=1, when=1_700_000_000.0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    for path, text in {
        ".agent/auth.json": "key",
        ".agent/sessions/deep/one.jsonl": "one",
        ".agent/sessions-of-others": "other",
        ".data/agent.db": "table",
        ".data/agent.db-wal": "more",
        ".data/agent.db.key": "key",
        ".cache/large/file": "cached",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def repository(
    home: Path, tmp_path: Path, git: GitProgram, jobs: WorkspaceJobs
) -> ShadowRepository:
    return ShadowRepository(tmp_path / "snapshots.git", home, git, jobs, only=ONLY)


async def test_only_declared_files_are_stored(
    repository: ShadowRepository, git: GitProgram
) -> None:
    await repository.take(LABEL)
    listed = await git.run(
        repository.repository, "ls-tree", "-r", "--name-only", "heads/files", seconds=60.0
    )
    assert listed.decode().split() == [
        ".agent/sessions/deep/one.jsonl",
        ".data/agent.db",
        ".data/agent.db-wal",
    ]
    rest = await git.run(repository.repository, "ls-tree", "-r", "heads/rest", seconds=60.0)
    assert rest.decode().split("\t")[1:] == ["manifest\n"]
    manifest = await git.run(repository.repository, "show", "heads/rest:manifest", seconds=60.0)
    assert b"cache" not in manifest


async def test_a_restore_leaves_all_other_files_as_they_are(
    repository: ShadowRepository, home: Path
) -> None:
    (home / ".data" / "agent.db-wal").unlink()
    await repository.take(LABEL)
    before = tree_of(home)
    (home / ".data" / "agent.db").write_text("another table")
    (home / ".data" / "agent.db-wal").write_text("of another table")
    (home / ".agent" / "sessions" / "two.jsonl").write_text("two")
    (home / "late").write_text("stays")
    await repository.restore()
    assert (home / "late").exists()
    (home / "late").unlink()
    assert tree_of(home) == before, "a log that belongs to another table is gone too"


async def test_a_link_to_a_secret_is_no_way_to_it(
    repository: ShadowRepository, home: Path, git: GitProgram
) -> None:
    (home / ".agent" / "sessions" / "link").symlink_to("../auth.json")
    (home / ".data" / "agent.db").unlink()
    (home / ".data" / "agent.db").symlink_to("agent.db.key")
    await repository.take(LABEL)
    content = await git.run(
        repository.repository, "show", "heads/files:.data/agent.db", seconds=60.0
    )
    assert content == b"agent.db.key", "the link's own text"


@pytest.mark.skipif(sys.platform != "linux", reason="links in the place of folders")
async def test_a_folder_on_the_way_that_is_a_link_is_not_entered(
    repository: ShadowRepository, home: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "sessions").mkdir(parents=True)
    (outside / "sessions" / "secret").write_text("secret")
    (home / ".agent").rename(home / "gone")
    (home / ".agent").symlink_to(outside)
    taken = await repository.take(LABEL)
    assert taken.files == 2, "those of .data"


async def test_a_home_without_such_files_has_no_snapshot(
    tmp_path: Path, git: GitProgram, jobs: WorkspaceJobs
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("text")
    repository = ShadowRepository(tmp_path / "s.git", tmp_path / "home", git, jobs, only=ONLY)
    assert (await repository.take(LABEL)).ref is None
    assert not await repository.exists()
