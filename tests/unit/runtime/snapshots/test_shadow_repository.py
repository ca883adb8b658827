"""Snapshots of a workspace at the ends of turns, and what is restored from them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import DeadlineExceeded, LimitExceeded, NotFound
from oubliette.runtime.snapshots.shadow_repository import TABLE, ShadowRepository
from oubliette.runtime.snapshots.snapshot_records import SnapshotCopy, SnapshotLabel
from oubliette.runtime.snapshots.workspace import program
from oubliette.runtime.snapshots.workspace.tree_table import TreeTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.runtime.snapshots.conftest import Shadow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


async def test_each_turn_can_be_restored_exactly(shadow: Shadow) -> None:
    workspace = shadow.workspace
    (workspace / "kept").write_text("one\n")
    (workspace / "folder" / "inner").mkdir(parents=True)
    (workspace / "folder" / "inner" / "program").write_bytes(b"\0\xff")
    (workspace / "folder" / "inner" / "program").chmod(0o750)
    (workspace / "link").symlink_to("folder/inner")
    first = await shadow.turn(1)
    of_first = shadow.tree()
    assert (first.ref, first.changed, first.files) == ("refs/oubliette/ses_1/1", True, 3)

    (workspace / "kept").write_text("two\nthree\n")
    (workspace / "link").unlink()
    (workspace / "link").mkdir()
    (workspace / "link" / "added").write_text("later")
    (workspace / "folder" / "inner" / "program").unlink()
    second = await shadow.turn(2)
    of_second = shadow.tree()
    assert (second.changed, second.files, second.insertions) == (True, 4, 3)

    await shadow.restore(1)
    assert shadow.tree() == of_first
    await shadow.restore(2)
    assert shadow.tree() == of_second


async def test_a_turn_that_changed_nothing_has_a_ref_to_the_same_commit(shadow: Shadow) -> None:
    (shadow.workspace / "file").write_text("text")
    first = await shadow.turn(1)
    unchanged = [await shadow.turn(number) for number in (2, 3, 4)]
    assert {each.commit for each in unchanged} == {first.commit}
    assert not any(each.changed for each in unchanged)
    refs = [each.ref for each in await shadow.repository.snapshots("ses_1")]
    assert refs == [f"refs/oubliette/ses_1/{number}" for number in (1, 2, 3, 4)]
    assert await shadow.run("rev-list", "--count", "refs/oubliette/ses_1/4") == "1\n"
    (shadow.workspace / "file").unlink()
    await shadow.restore(3)
    assert (shadow.workspace / "file").read_text() == "text"


async def test_an_empty_workspace_costs_nothing_until_it_has_something(shadow: Shadow) -> None:
    (shadow.workspace / ".rlm-context").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=shadow.workspace, check=True)
    assert (await shadow.turn(1)).ref is None
    assert not shadow.folder.exists()
    (shadow.workspace / "file").write_text("text")
    assert (await shadow.turn(2)).changed
    with pytest.raises(NotFound):
        await shadow.restore(1)


async def test_a_commit_says_whose_turn_it_was(shadow: Shadow) -> None:
    (shadow.workspace / "file").write_text("text")
    await shadow.turn(1)
    text = await shadow.run("log", "--format=%B", "refs/oubliette/ses_1/1")
    assert "Session: ses_1\nTurn: 1\nMoment: end\nAgent: scripted\n" in text


async def test_a_snapshot_of_another_server_is_continued(shadow: Shadow, tmp_path: Path) -> None:
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    again = type(shadow)(tmp_path / "one", shadow.git, shadow.jobs)
    assert not (await again.turn(2)).changed
    (shadow.workspace / "file").write_text("two")
    (shadow.folder / TABLE).write_text("damaged")
    changed = await type(shadow)(tmp_path / "one", shadow.git, shadow.jobs).turn(3)
    assert (changed.changed, changed.files) == (True, 1)
    await again.restore(1)
    assert (shadow.workspace / "file").read_text() == "one"


async def test_what_a_snapshot_has_no_content_of_is_said(
    shadow_of: Callable[..., Shadow],
) -> None:
    shadow = shadow_of(max_file_bytes=1000)
    (shadow.workspace / "small").write_bytes(b"x" * 1000)
    (shadow.workspace / "large").write_bytes(b"x" * 1001)
    os.mkfifo(shadow.workspace / "pipe")
    taken = await shadow.turn(1)
    assert taken.left_out == 2
    assert taken.left_out_shown["pipe"] == "pipe"
    assert "large" in taken.left_out_shown
    whole = shadow.tree()
    assert (await shadow.restore(1)).missing_count == 0
    assert shadow.tree() == whole, "what is there and cannot be restored is left alone"
    (shadow.workspace / "large").unlink()
    restored = await shadow.restore(1)
    assert list(restored.missing) == ["large"]
    assert restored.missing["large"].startswith("1001 bytes, SHA-256 ")


async def test_a_workspace_above_the_limits_is_refused_and_says_so(
    shadow_of: Callable[..., Shadow],
) -> None:
    shadow = shadow_of(max_entries=10)
    for number in range(11):
        (shadow.workspace / str(number)).touch()
    with pytest.raises(LimitExceeded, match="more than 10 entries"):
        await shadow.turn(1)
    late = shadow_of("late", seconds=0.0)
    for number in range(3000):
        (late.workspace / str(number)).touch()
    with pytest.raises(DeadlineExceeded):
        await late.turn(1)
    assert await late.repository.snapshots() == []


@pytest.mark.parametrize(("changes", "torn"), [(1, False), (3, True)])
async def test_a_tree_that_changes_all_the_while_makes_a_snapshot_torn(
    tmp_path: Path, changes: int, torn: bool
) -> None:
    (tmp_path / "log").write_text("x")
    left = [changes]

    def store(name: str, data: bytes) -> None:
        """Take a content, while the agent goes on with the file that it is of."""
        if left[0]:
            left[0] -= 1
            with (tmp_path / "log").open("a") as log:
                log.write("x" * 100)

    root = os.open(tmp_path, os.O_RDONLY)
    job = {"table": None, "max_file_bytes": 1000, "max_entries": 1000, "only": []}
    table, was_torn = program._read(job, root, TreeTable(), store, time.monotonic() + 60)
    os.close(root)
    assert was_torn == torn
    assert set(table.entries) == {b"log"}


async def test_modes_and_empty_folders_are_restored(shadow: Shadow) -> None:
    # Only root looks into folders that their owner may not read or pass.
    passable = 0o000 if os.geteuid() == 0 else 0o500
    for mode in (0o400, 0o444, 0o600, 0o644, 0o700, 0o755, 0o777):
        (shadow.workspace / f"file-{mode:o}").write_text(str(mode))
        (shadow.workspace / f"file-{mode:o}").chmod(mode)
        (shadow.workspace / f"folder-{mode:o}").mkdir()
        (shadow.workspace / f"folder-{mode:o}" / "file").touch()
        (shadow.workspace / f"folder-{mode:o}").chmod(mode | passable)
    (shadow.workspace / "empty").mkdir()
    (shadow.workspace / "empty").chmod(0o500)
    await shadow.turn(1)
    before = shadow.tree()
    for entry in shadow.workspace.iterdir():
        entry.chmod(0o755)
    (shadow.workspace / "empty").rmdir()
    await shadow.restore(1)
    assert shadow.tree() == before


async def test_many_packs_become_one_and_every_turn_stays(
    shadow: Shadow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oubliette.runtime.snapshots.shadow_repository.MAX_PACKS", 2)
    for number in (1, 2, 3):
        (shadow.workspace / "file").write_text(f"text {number}")
        await shadow.turn(number)
    assert await shadow.repository.tidy()
    assert len(list((shadow.folder / "objects" / "pack").glob("*.pack"))) == 1
    assert not await shadow.repository.tidy()
    for number in (1, 2, 3):
        await shadow.restore(number)
        assert (shadow.workspace / "file").read_text() == f"text {number}"
    await shadow.run("fsck", "--full", "--strict")


async def test_a_program_that_was_killed_leaves_no_half_snapshot(shadow: Shadow) -> None:
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    (shadow.workspace / "file").write_text("two")
    (shadow.folder / f"{TABLE}.left").write_text("of a program that was killed")
    (shadow.folder / "refs" / "new").mkdir(parents=True, exist_ok=True)
    locks = [shadow.folder / "refs" / f"{each}.lock" for each in ("new/files", "new/rest")]
    for lock in locks:
        lock.touch()
    assert (await shadow.turn(2)).files == 1
    await shadow.repository.tidy()
    assert not (shadow.folder / f"{TABLE}.left").exists()
    assert not any(lock.exists() for lock in locks)


@pytest.mark.parametrize("durable", [False, True])
async def test_locks_that_killed_programs_have_left_stop_no_later_server(
    shadow: Shadow, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git refuses to write what is locked, and the lock of a killed one stays for ever."""
    monkeypatch.setattr("oubliette.runtime.snapshots.shadow_repository.MAX_PACKS", 1)
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    for name in (
        *("refs/new/files", "refs/new/rest", "refs/heads/files", "refs/heads/rest"),
        *("refs/oubliette/ses_1/1", "refs/oubliette/ses_1/2", "packed-refs", "HEAD"),
    ):
        (shadow.folder / f"{name}.lock").write_text("0" * 40)
    again = ShadowRepository(
        *(shadow.folder, shadow.workspace, shadow.git, shadow.jobs), durable=durable
    )
    for turn in (2, 3):
        (shadow.workspace / "file").write_text(f"turn {turn}")
        label = SnapshotLabel(session_id="ses_1", turn=turn)
        assert (await again.take(label)).files == 1
    assert await again.tidy()
    assert len(await again.snapshots()) == 3
    assert not list(shadow.folder.rglob("*.lock"))


async def test_a_copy_is_equal_to_the_snapshot_but_for_objects_of_git(
    shadow: Shadow, tmp_path: Path
) -> None:
    (shadow.workspace / "kept").write_text("one\n")
    (shadow.workspace / ".git" / "objects").mkdir(parents=True)
    (shadow.workspace / ".git" / "config").write_text("[core]\n")
    await shadow.turn(1)
    (shadow.workspace / "kept").write_text("two\n")
    await shadow.turn(2)
    copy = tmp_path / "copy"
    pack = copy / ".git" / "objects" / "pack" / "pack-1.pack"
    pack.parent.mkdir(parents=True)
    pack.write_text("of the clone")
    (copy / ".git" / "stale").write_text("")
    (copy / "other" / "objects").mkdir(parents=True)
    done = await shadow.repository.copy("refs/oubliette/ses_1/1", SnapshotCopy(folder=str(copy)))
    assert (done.written, done.missing_count) == (2, 0)
    assert (copy / "kept").read_text() == "one\n"
    assert (shadow.workspace / "kept").read_text() == "two\n"
    assert pack.read_text() == "of the clone"
    assert sorted(os.listdir(copy)) == [".git", "kept"]
    assert sorted(os.listdir(copy / ".git")) == ["config", "objects"]


async def test_files_that_snapshots_have_no_content_of_are_copied_from_where_they_still_are(
    shadow_of: Callable[..., Shadow], tmp_path: Path
) -> None:
    shadow = shadow_of(max_file_bytes=1000)
    names = ["same", "changed", "link", "pipe", "gone", "folder/same"]
    for name in names:
        (shadow.workspace / name).parent.mkdir(exist_ok=True)
        (shadow.workspace / name).write_bytes(name.encode() * 1000)
        (shadow.workspace / name).chmod(0o755)
    await shadow.turn(1)
    for name in names[1:5]:
        (shadow.workspace / name).unlink()
    (shadow.workspace / "changed").write_bytes(b"CHANGED" * 1000)
    secret = tmp_path / "secret"
    secret.write_bytes(b"link" * 1000)
    (shadow.workspace / "link").symlink_to(secret)
    os.mkfifo(shadow.workspace / "pipe")
    for keep_free, missing in ((0, names[1:5]), (1 << 60, names)):
        copy = tmp_path / str(keep_free)
        copy.mkdir()
        wanted = SnapshotCopy(
            folder=str(copy), large_from=str(shadow.workspace), keep_free=keep_free
        )
        done = await shadow.repository.copy("refs/oubliette/ses_1/1", wanted)
        assert sorted(done.missing) == sorted(missing)
        for name in set(names) - set(missing):
            assert (copy / name).read_bytes() == name.encode() * 1000
            assert (copy / name).stat().st_mode & 0o777 == 0o755
        assert not [name for name in missing if (copy / name).exists()]
        assert sorted(os.listdir(copy)) == ["folder", *(["same"] if "same" not in missing else [])]


async def test_a_machine_that_is_too_slow_for_a_glance_takes_no_snapshot_of_nothing(
    shadow: Shadow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oubliette.runtime.snapshots.workspace.tree_reader.SECONDS", -1.0)
    subprocess.run(["git", "init", "-q"], cwd=shadow.workspace, check=True)
    assert (await shadow.turn(1)).ref is None


async def test_snapshots_of_a_project_that_are_too_large_are_no_more(
    shadow_of: Callable[..., Shadow],
) -> None:
    shadow = shadow_of(max_bytes=50_000)
    for turn in (1, 2):  # the first is below the limit, so there is a second one
        (shadow.workspace / "file").write_bytes(os.urandom(40_000))
        await shadow.turn(turn)
    (shadow.workspace / "file").write_bytes(b"text")
    with pytest.raises(LimitExceeded, match=r"projects\.max_bytes \(50000\)"):
        await shadow.turn(3)
    await shadow.restore(2)
    assert (shadow.workspace / "file").stat().st_size == 40_000


async def test_looking_at_an_unused_workspace_makes_nothing(shadow: Shadow) -> None:
    subprocess.run(["git", "init", "-q"], cwd=shadow.workspace, check=True)
    assert (await shadow.turn(1)).ref is None
    assert not shadow.folder.exists()
    (shadow.workspace / "file").write_text("text")
    assert (await shadow.turn(2)).changed
    (shadow.workspace / "file").unlink()
    assert (await shadow.turn(3)).changed
    assert not (await shadow.turn(4)).changed
