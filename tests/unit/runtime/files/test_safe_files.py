"""A folder is removed whole, whatever others do with it at the same time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.runtime.files import safe_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
