"""Workspaces whose agents want to run something, read something, or lose something."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.runtime.snapshots.conftest import Shadow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

AGENT = 4_200_000
"""User id of the agents, where the tests are root."""


def repository_in(folder: Path, marker: Path) -> None:
    """Make a repository in which everything that git could run leaves a mark."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    program = folder / ".git" / "harm"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    for hook in ("pre-commit", "post-index-change", "reference-transaction", "post-checkout"):
        shutil.copy(program, folder / ".git" / "hooks" / hook)
    (folder / ".gitattributes").write_text("* filter=harm diff=harm text eol=crlf ident\n")
    with (folder / ".git" / "config").open("a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\thooksPath = .git/hooks\n"
            f'[filter "harm"]\n\tclean = {program}\n\tsmudge = {program}\n\trequired = true\n'
            f'[diff "harm"]\n\ttextconv = {program}\n\tcommand = {program}\n'
            f"[credential]\n\thelper = {program}\n"
        )


async def test_nothing_that_a_repository_plants_is_run(shadow: Shadow, tmp_path: Path) -> None:
    marker = tmp_path / "harmed"
    repository_in(shadow.workspace, marker)
    repository_in(shadow.workspace / "nested" / "deep", marker)
    text = b"$Id$\r\nline\n"
    (shadow.workspace / "file").write_bytes(text)
    before = shadow.tree()
    await shadow.turn(1)
    (shadow.workspace / "file").write_bytes(b"changed")
    await shadow.turn(2)
    shutil.rmtree(shadow.workspace / "nested")
    await shadow.restore(1)
    assert shadow.tree() == before
    assert not marker.exists()


@pytest.mark.parametrize("size", [1 << 42, 1 << 20, 4], ids=["sparse", "large", "same"])
async def test_what_took_the_place_of_a_small_file_is_not_read_whole(
    shadow: Shadow, size: int
) -> None:
    (shadow.workspace / "small").write_bytes(b"text")
    before = shadow.tree()
    await shadow.turn(1)
    os.truncate(shadow.workspace / "small", 0)
    os.truncate(shadow.workspace / "small", size)
    await shadow.restore(1)
    assert shadow.tree() == before


async def test_nested_repositories_are_files_and_no_links_to_commits(shadow: Shadow) -> None:
    nested = shadow.workspace / "nested"
    nested.mkdir()
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q"], cwd=nested, check=True)
    (nested / "file").write_text("of the nested one")
    subprocess.run([*run, "add", "-A"], cwd=nested, check=True)
    subprocess.run([*run, "commit", "-qm", "one"], cwd=nested, check=True)
    before = shadow.tree()
    await shadow.turn(1)
    assert "160000" not in await shadow.run("ls-tree", "-r", "refs/oubliette/ses_1/1")
    shutil.rmtree(nested)
    await shadow.restore(1)
    assert shadow.tree() == before
    shown = subprocess.run(
        ["git", "-c", "safe.directory=*", "log", "--format=%s"],
        cwd=nested, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert shown.stdout == "one\n"


@pytest.mark.parametrize("kind", ["file", "link", "folder", "alternates"])
async def test_the_agents_git_is_data_whatever_it_is(
    shadow: Shadow, kind: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    repository_in(outside, tmp_path / "harmed")
    top = shadow.workspace / ".git"
    if kind == "file":
        top.write_text(f"gitdir: {outside / '.git'}\n")
    elif kind == "link":
        top.symlink_to(outside / ".git")
    elif kind == "folder":
        top.mkdir()
        (top / "HEAD").write_text("no repository")
    else:
        subprocess.run(["git", "init", "-q"], cwd=shadow.workspace, check=True)
        (top / "objects" / "info" / "alternates").write_text(f"{outside / '.git' / 'objects'}\n")
    (shadow.workspace / "a" / "b").mkdir(parents=True)
    (shadow.workspace / "a" / "b" / ".git").write_text("a file that is called so")
    (shadow.workspace / "a" / ".GIT").write_text("and one for other systems")
    before, untouched = shadow.tree(), sorted(outside.rglob("*"))
    await shadow.turn(1)
    names = await shadow.run("ls-tree", "-r", "--name-only", "refs/oubliette/ses_1/1")
    assert names == "", "no checkout of these files makes a repository of an agent's"
    shutil.rmtree(shadow.workspace / "a")
    if not top.is_symlink() and top.is_dir():
        shutil.rmtree(top)
    else:
        top.unlink()
    await shadow.restore(1)
    assert shadow.tree() == before
    assert sorted(outside.rglob("*")) == untouched
    assert not (tmp_path / "harmed").exists()


async def test_names_of_any_bytes_are_kept(shadow: Shadow) -> None:
    top = os.fsencode(shadow.workspace)
    for name in (
        b"new\nline", b"back\\slash", b'quo"te', b"\xff\xfe", b"tab\t", b"Case", b"case", b" ",
        b"-rf", b"'", "ü".encode(), "u\u0308".encode(), b"%.git", b":(glob)*", b"a\r",
        b"a\\.git", b"a\\%.git", b".git\\a", b"a:.git",
    ):  # fmt: skip
        with open(os.path.join(top, name), "wb") as file:
            file.write(b"content of " + name)
        os.mkdir(os.path.join(top, name + b".d"))
        with open(os.path.join(top, name + b".d", name), "wb") as file:
            file.write(name)
        os.symlink(name, os.path.join(top, name + b".l"))
    before = shadow.tree()
    await shadow.turn(1)
    for entry in shadow.workspace.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    await shadow.restore(1)
    assert shadow.tree() == before
    await shadow.run("fsck", "--full", "--strict")


async def test_links_that_git_takes_for_its_own_files_keep_nobody_from_fetching(
    shadow: Shadow, tmp_path: Path
) -> None:
    """git refuses all of a fetch for one link that is `.gitmodules` on some file system."""
    names = [
        ".gitmodules", ".GitModules", ".gitmodules ", ".gitmodules...", ".git\u200cmodules",
        ".gitmodules:x", "a\\.gitmodules", "gitmod~1", "GITMOD~4", "gitmod~2. ", "gitmod~3:x",
        "gi7eba~1", "GI7EBA~9", "gi7eb~12", "gi~12345", "~1234567", "b\\gi7eba~1",
    ]  # fmt: skip
    plain = ["gitmod~5", "gitmod~12", "gi7eba~", "gi7eba~0", "gi7eb~1", "~123456", "gitmod~"]
    for name in (*names, *plain):
        (shadow.workspace / name).symlink_to("target")
    before = shadow.tree()
    await shadow.turn(1)
    run = ["git", "-c", "transfer.fsckObjects=true", "-c", "safe.directory=*"]
    subprocess.run([*run, "init", "-q", tmp_path / "clone"], check=True)
    subprocess.run(
        [*run, "fetch", "-q", shadow.folder, "refs/oubliette/*:refs/oubliette/*"],
        cwd=tmp_path / "clone", check=True,
    )  # fmt: skip
    listed = await shadow.run("ls-tree", "-r", "-z", "--name-only", "refs/oubliette/ses_1/1")
    assert sorted(listed.split("\0")[:-1]) == sorted(plain)
    await shadow.run("fsck", "--full", "--strict")
    for each in shadow.workspace.iterdir():
        each.unlink()
    await shadow.restore(1)
    assert shadow.tree() == before


async def test_links_are_neither_read_through_nor_written_through(
    shadow: Shadow, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("not of the workspace")
    (shadow.workspace / "folder").mkdir()
    (shadow.workspace / "folder" / "secret").write_text("mine")
    (shadow.workspace / "to-file").symlink_to(outside / "secret")
    await shadow.turn(1)
    stored = await shadow.run("cat-file", "-p", "refs/oubliette/ses_1/1:to-file")
    assert stored == str(outside / "secret")
    shutil.rmtree(shadow.workspace / "folder")
    (shadow.workspace / "folder").symlink_to(outside)
    (shadow.workspace / "to-file").unlink()
    (shadow.workspace / "to-file").write_text("now a file")
    await shadow.restore(1)
    assert not (shadow.workspace / "folder").is_symlink()
    assert (shadow.workspace / "folder" / "secret").read_text() == "mine"
    assert (outside / "secret").read_text() == "not of the workspace"
    assert (shadow.workspace / "to-file").is_symlink()


async def test_a_folder_of_any_depth_is_said_and_can_be_removed(shadow: Shadow) -> None:
    (shadow.workspace / "file").write_text("text")
    await shadow.turn(1)
    fds = [os.open(shadow.workspace, os.O_RDONLY)]
    for _ in range(400):
        os.mkdir("deep", dir_fd=fds[-1])
        fds.append(os.open("deep", os.O_RDONLY, dir_fd=fds[-1]))
    for fd in fds:
        os.close(fd)
    taken = await shadow.turn(2)
    assert taken.left_out == 1
    await shadow.restore(1)
    assert [entry.name for entry in shadow.workspace.iterdir()] == ["file"]


async def test_a_large_file_that_became_huge_holds_up_no_restore(
    shadow_of: Callable[..., Shadow],
) -> None:
    shadow = shadow_of(max_file_bytes=1000)
    (shadow.workspace / "file").write_text("text")
    (shadow.workspace / "large").write_bytes(b"x" * 1001)
    await shadow.turn(1)
    (shadow.workspace / "file").write_text("other")
    os.truncate(shadow.workspace / "large", 1 << 42)
    restored = await shadow.restore(1)
    assert (shadow.workspace / "file").read_text() == "text"
    assert restored.missing["large"].startswith("has changed; it was 1001 bytes")


async def test_a_file_that_nobody_can_read_in_time_keeps_no_other_out(shadow: Shadow) -> None:
    (shadow.workspace / "file").write_text("text")
    image = shadow.workspace / "disk.img"
    image.touch()
    os.truncate(image, 8 << 40)
    taken = await shadow.turn(1)
    assert taken.left_out_shown == {"disk.img": "larger than 8 GiB"}
    (shadow.workspace / "file").unlink()
    await shadow.restore(1)
    assert (shadow.workspace / "file").read_text() == "text"
    assert image.stat().st_size == 8 << 40, "it stays as it is"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be someone else")
async def test_a_workspace_is_read_and_written_as_its_owner(shadow: Shadow, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    own = shadow.workspace / "own"
    own.write_text("text")
    private = shadow.workspace / "of-root"
    private.write_text("of the machine's administrator")
    private.chmod(0o600)
    os.chown(own, AGENT, AGENT)
    os.chown(shadow.workspace, AGENT, AGENT)
    taken = await shadow.turn(1)
    assert taken.left_out_shown == {"of-root": "unreadable: Permission denied"}
    own.unlink()
    await shadow.restore(1)
    assert (own.read_text(), own.stat().st_uid, own.stat().st_gid) == ("text", AGENT, AGENT)
    assert private.exists()


async def test_a_users_git_can_fetch_the_files(
    shadow: Shadow, tmp_path: Path, shadow_of: Callable[..., Shadow]
) -> None:
    repository_in(shadow.workspace, tmp_path / "harmed")
    (shadow.workspace / "file").write_text("text")
    await shadow.turn(1)
    clone = tmp_path / "clone"
    run = ["git", "-c", "transfer.fsckObjects=true", "-c", "safe.directory=*"]
    subprocess.run([*run, "init", "-q", clone], check=True)
    subprocess.run(
        [*run, "fetch", "-q", shadow.folder, "refs/oubliette/*:refs/oubliette/*"],
        cwd=clone, check=True,
    )  # fmt: skip
    names = subprocess.run(
        [*run, "ls-tree", "-r", "--name-only", "refs/oubliette/ses_1/1"],
        cwd=clone, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert names.stdout.split() == [".gitattributes", "file"]
