"""An agent's files are copied to a fork's HOME as they were at one moment, and nothing else is."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.runtime.files import home_copies
from oubliette.runtime.files.home_copies import copy_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    return source, target


def copied(homes: tuple[Path, Path], *paths: str, **renamed: str) -> int:
    return copy_files(*homes, paths, uid=-1, renamed=renamed)


def found(home: Path) -> dict[str, str]:
    return {
        str(each.relative_to(home)): each.read_text(encoding="utf-8")
        for each in sorted(home.rglob("*"))
        if each.is_file()
    }


def test_files_and_folders_are_copied_and_nothing_beside_them(homes: tuple[Path, Path]) -> None:
    source, target = homes
    (source / ".data/talks/old").mkdir(parents=True)
    (source / ".data/talks/old/one").write_text("1")
    (source / ".data/talks/two").write_text("2")
    (source / ".data/auth.json").write_text("secret")
    (source / "state").write_text("s")
    assert copied(homes, ".data/talks", "state", "missing/file", "missing") == 3
    assert found(target) == {".data/talks/old/one": "1", ".data/talks/two": "2", "state": "s"}
    (source / "state").write_text("changed")
    assert found(target)["state"] == "s"


def test_a_name_with_the_workspace_in_it_gets_that_of_the_fork(homes: tuple[Path, Path]) -> None:
    source, target = homes
    (source / ".talks/-workspace-aaa").mkdir(parents=True)
    (source / ".talks/-workspace-aaa/one").write_text("in aaa")
    copied(homes, ".talks", aaa="bbb")
    assert found(target) == {".talks/-workspace-bbb/one": "in aaa"}


def test_links_and_what_is_no_file_are_left_out(homes: tuple[Path, Path]) -> None:
    source, target = homes
    outside = source.parent / "outside"
    outside.mkdir()
    (outside / "one").write_text("not ours")
    (source / "talks").mkdir()
    (source / "talks/link").symlink_to(outside / "one")
    (source / "talks/folder").symlink_to(outside)
    os.mkfifo(source / "talks/pipe")
    (source / "away").symlink_to(outside)
    assert copied(homes, "talks", "away", "away/one") == 0
    assert found(target) == {}


def test_a_database_that_is_open_is_copied_with_what_was_committed(
    homes: tuple[Path, Path],
) -> None:
    source, target = homes
    writer = sqlite3.connect(source / "talks.db", isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE said (text)")
    writer.execute("INSERT INTO said VALUES ('before')")
    writer.execute("BEGIN")
    writer.execute("INSERT INTO said VALUES ('not yet')")
    paths = ("talks.db", "talks.db-wal", "talks.db-shm")
    assert copied(homes, *paths) == 2
    writer.execute("COMMIT")
    writer.close()
    reader = sqlite3.connect(target / "talks.db")
    assert reader.execute("SELECT text FROM said").fetchall() == [("before",)]
    assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    reader.close()


@pytest.fixture
def while_read(monkeypatch: pytest.MonkeyPatch, homes: tuple[Path, Path]):
    """Has a file changed while it is read, the first few times."""

    def begin(times: int) -> None:
        left = times
        file = homes[0] / "state"
        file.write_text("x" * left)

        def pieces(opened: home_copies._SourceFile, size: int) -> Iterator[bytes]:
            nonlocal left
            yield os.read(opened.fd, size)
            if left > 0:
                left -= 1
                file.write_text("x" * left)

        monkeypatch.setattr(home_copies._SourceFile, "pieces", pieces)

    return begin


def test_what_changes_while_it_is_copied_is_copied_again(
    homes: tuple[Path, Path], while_read
) -> None:
    while_read(3)
    assert copied(homes, "state") == 1
    assert found(homes[1]) == {"state": ""}


def test_what_does_not_come_to_rest_leaves_nothing(homes: tuple[Path, Path], while_read) -> None:
    while_read(100)
    with pytest.raises(RuntimeFailure, match="'state' changes too often"):
        copied(homes, "state")
    assert found(homes[1]) == {}


def test_what_is_too_much_leaves_nothing(
    homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_copies, "MAX_FILES", 3)
    (homes[0] / "talks").mkdir()
    for number in range(4):
        (homes[0] / f"talks/{number}").write_text("x")
    with pytest.raises(RuntimeFailure, match="more than 3"):
        copied(homes, "talks")
    assert found(homes[1]) == {}
    deep = homes[0] / "deep"
    for _ in range(40):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(RuntimeFailure, match="too many folders"):
        copied(homes, "deep")


def test_without_a_home_there_is_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copy_files(tmp_path / "none", tmp_path, ("x",), uid=-1, renamed={})
