"""A folder is removed whole, whatever others do with it at the same time."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers import host_paths
from oubliette.runtime.files import safe_files

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def top(tmp_path: Path) -> Iterator[int]:
    """The folder in which one of three folders is, by its descriptor."""
    for name in ("a", "b", "c"):
        (tmp_path / "project" / name / "below").mkdir(parents=True)
        (tmp_path / "project" / name / "file").write_text("text")
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_two_at_the_same_time_leave_nothing_of_it(top: int) -> None:
    def another() -> bool:
        gone = [name for name in os.listdir(top) if safe_files.GONE.fullmatch(name)]
        if gone:
            safe_files.remove(top, sorted(gone)[0])
        return True

    safe_files.remove(top, "project", another)
    assert os.listdir(top) == []


def test_what_is_put_into_it_meanwhile_is_removed_too(
    top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, put = os.rmdir, []

    def rmdir(name: str, *, dir_fd: int) -> None:
        if len(put) < 3:
            put.append(name)
            os.mkdir(f"{name}/late-{len(put)}", dir_fd=dir_fd)
        remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    safe_files.remove(top, "project")
    assert len(put) == 3
    assert os.listdir(top) == []


def test_a_folder_that_is_filled_again_and_again_is_given_up(
    top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = os.rmdir

    def rmdir(name: str, *, dir_fd: int) -> None:
        if name == "project":
            os.close(os.open(f"{name}/late", os.O_CREAT, dir_fd=dir_fd))
        remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    with pytest.raises(RuntimeFailure, match="'project' cannot be removed: Directory not empty"):
        safe_files.remove(top, "project")


@pytest.fixture
def closed_umask() -> Iterator[None]:
    """The umask of a hardened unit."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in sorted(folder.iterdir())}


def test_files_and_folders_have_the_modes_that_are_asked_for_under_any_umask(
    tmp_path: Path, closed_umask: None
) -> None:
    with safe_files.opened(tmp_path) as fd:
        safe_files.make(fd, "homes", -1, 0o711)
        safe_files.write(fd, "settings.json", b"{}", 0o644)
        safe_files.write_below(fd, "below/more", b"", 0o644)
    host_paths.write_private(tmp_path / "key", b"", mode=0o644)
    assert modes(tmp_path) == {"below": 0o755, "homes": 0o711, "key": 0o644, "settings.json": 0o644}


@pytest.mark.skipif(os.geteuid() != 0, reason="root's servers alone have agents of other users")
def test_a_folder_of_roots_that_an_umask_closed_is_opened_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "homes").mkdir(mode=0o700)
    with safe_files.opened(tmp_path) as fd:
        safe_files.make(fd, "homes", -1, 0o711)
    assert modes(tmp_path) == {"homes": 0o711}


@pytest.fixture
def ordinary() -> Iterator[Path]:
    """A folder of an ordinary user, from whom a file system keeps what has no bits."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    if os.geteuid() != 0:
        yield folder
    else:
        os.chown(folder, 12345, 12345)
        os.seteuid(12345)
        try:
            yield folder
        finally:
            os.seteuid(0)
    shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o555, 0o444, 0o111, 0])
def test_folders_without_the_bits_to_be_removed_are_removed_and_no_link_is_followed(
    mode: int, ordinary: Path
) -> None:
    """As Go makes its cache of modules, and as `chmod -R a-w` leaves a folder."""
    kept = ordinary / "kept"
    kept.mkdir()
    (kept / "file").touch()
    kept.chmod(0o555)
    deep = ordinary / "project" / "a" / "b"
    deep.mkdir(parents=True)
    for folder in (deep, deep.parent, deep.parent.parent):
        (folder / "file").touch()
        (folder / "link").symlink_to(kept)
        folder.chmod(mode)
    with safe_files.opened(ordinary) as fd:
        safe_files.remove(fd, "project")
    assert [each.name for each in ordinary.iterdir()] == ["kept"]
    assert modes(ordinary) == {"kept": 0o555}
    assert (kept / "file").exists()
    kept.chmod(0o755)
