"""What a folder takes on the disk, whatever its owner does to it."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.files import disk_usage
from oubliette.runtime.files.disk_usage import measure

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_files_in_all_folders_are_counted(tmp_path: Path) -> None:
    for name in ("a", "b/c/d"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * MIB)
    found = measure([tmp_path], seconds=10)
    assert 2 * MIB <= found.bytes < 3 * MIB
    assert (found.entries, found.complete) == (6, True)


def test_links_are_not_followed_and_names_of_one_file_count_once(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "big").write_bytes(b"x" * 4 * MIB)
    (inside / "link").symlink_to(outside)
    (inside / "one").write_bytes(b"x" * MIB)
    os.link(inside / "one", inside / "two")
    assert MIB <= measure([inside], seconds=10).bytes < 2 * MIB
    (tmp_path / "top").symlink_to(outside)
    assert measure([tmp_path / "top", tmp_path / "nowhere"], seconds=10).entries == 0


def test_holes_take_no_room(tmp_path: Path) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(100 * MIB)
    assert measure([tmp_path], seconds=10).bytes < MIB


def test_a_scan_that_takes_too_long_says_so(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / str(number)).touch()
    assert not measure([tmp_path], seconds=0).complete


@pytest.mark.parametrize("name", ["d", "n" * 255], ids=["short", "long"])
def test_depth_hides_nothing_and_holds_no_descriptors(tmp_path: Path, name: str) -> None:
    """Below a path that is longer than a system call takes, too."""
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(400):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(file, b"x" * MIB)
    os.close(file)
    os.close(fd)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/file").write_bytes(b"x" * MIB)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = max(map(int, os.listdir("/proc/self/fd"))) + 4
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
    try:
        found = measure([tmp_path], seconds=60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.complete
    assert (found.bytes >= 2 * MIB, found.entries) == (True, 403)


def test_a_folder_that_is_moved_meanwhile_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / "a/b").mkdir(parents=True)
    outside.mkdir()
    (outside / "theirs").write_bytes(b"x" * MIB)
    counted = disk_usage._counted

    def moving(fd: int, device: int, count: Any) -> list[str]:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/b"):
            (project / "a/b").rename(outside / "b")
        return counted(fd, device, count)

    monkeypatch.setattr(disk_usage, "_counted", moving)
    found = measure([project], seconds=10)
    assert not found.complete
    assert found.bytes < MIB


def test_what_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    opening = os.open

    def refused(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "closed":  # as for an ordinary user: root may read it
            raise PermissionError(errno.EACCES, "Permission denied")
        return opening(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    assert not measure([tmp_path], seconds=10).complete


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    measure([tmp_path], seconds=10)
    measure([tmp_path], seconds=0)
    assert len(os.listdir("/proc/self/fd")) == before
