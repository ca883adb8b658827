"""A copy has a branch of its own, whatever an agent has made of its repository."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.snapshots.workspace.branch_names import begin_branch
from tests.git_hosts import checkout, git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
OLD, NEW = "oubliette/default", "oubliette/new"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = checkout(tmp_path / "source", {"a": "1\n"})
    git(made, "checkout", "--quiet", "-b", OLD)
    return made


def begun(folder: Path) -> bool:
    root = os.open(folder, os.O_RDONLY)
    try:
        return begin_branch(root, OLD, NEW)
    finally:
        os.close(root)


@pytest.mark.parametrize("packed", [False, True])
def test_the_branch_has_its_commit_under_the_new_name_alone(folder: Path, packed: bool) -> None:
    head = git(folder, "rev-parse", "HEAD")
    if packed:
        git(folder, "pack-refs", "--all")
    assert begun(folder)
    assert git(folder, "rev-parse", "HEAD") == head
    assert git(folder, "branch", "--show-current").strip() == NEW
    names = git(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads/").split()
    assert sorted(names) == ["main", NEW]
    git(folder, "fsck", "--strict")


@pytest.mark.parametrize("detached", [False, True])
def test_another_branch_that_is_checked_out_stays_beside_the_new_one(
    folder: Path, detached: bool
) -> None:
    head = git(folder, "rev-parse", "HEAD")
    git(folder, "checkout", "--quiet", *(["--detach"] if detached else ["main"]))
    assert begun(folder)
    assert git(folder, "rev-parse", "HEAD") == head
    assert git(folder, "branch", "--show-current").strip() == NEW
    names = git(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads/").split()
    assert sorted(names) == ["main", OLD, NEW]
    assert git(folder, "status", "--short") == ""


def test_without_a_repository_or_a_head_nothing_is_done(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert not begun(tmp_path / "none")
    for head in ("ref: refs/tags/x", "nonsense", ""):
        (folder / ".git" / "HEAD").write_text(head)
        assert not begun(folder)
        assert (folder / ".git" / "HEAD").read_text() == head
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/../../config\n")
    assert begun(folder)
    assert not (folder / ".git" / "refs" / "heads" / NEW).exists()


def test_a_branch_without_a_commit_is_begun(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch", OLD, "empty")
    assert begun(tmp_path / "empty")
    assert (tmp_path / "empty" / ".git" / "HEAD").read_text() == f"ref: refs/heads/{NEW}\n"


@pytest.mark.parametrize("planted", [".git", ".git/refs", ".git/HEAD", ".git/packed-refs"])
def test_no_link_is_followed(folder: Path, tmp_path: Path, planted: str) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(folder / ".git", outside)
    before = sorted(path.name for path in outside.rglob("*"))
    head = (outside / "HEAD").read_text()
    place, inside = folder / planted, planted.partition(".git")[2].strip("/")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(outside / inside)
    with contextlib.suppress(OSError):
        begun(folder)
    assert sorted(path.name for path in outside.rglob("*")) == before
    assert (outside / "HEAD").read_text() == head
