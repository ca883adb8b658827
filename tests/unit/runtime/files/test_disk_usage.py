"""What a folder takes on the disk, whatever its owner does to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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


def test_what_is_nested_too_deeply_or_takes_too_long_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_usage, "MAX_DEPTH", 5)
    (tmp_path / "/".join("abcdefgh")).mkdir(parents=True)
    assert not measure([tmp_path], seconds=10).complete
    for number in range(200):
        (tmp_path / str(number)).touch()
    assert not measure([tmp_path], seconds=0).complete


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    measure([tmp_path], seconds=10)
    measure([tmp_path], seconds=0)
    assert len(os.listdir("/proc/self/fd")) == before
