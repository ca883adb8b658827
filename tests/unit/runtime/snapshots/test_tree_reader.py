"""A pass over a workspace that changes meanwhile is the tree of one moment, or does not say so."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.snapshots.workspace import program, tree_reader
from oubliette.runtime.snapshots.workspace.tree_reader import TreeReader, settled_before
from oubliette.runtime.snapshots.workspace.tree_table import TreeTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

Contents = dict[str, tuple[int, bytes]]


def made(folder: Path) -> Path:
    """A small tree whose files are older than the last tick of the clock of files."""
    for part in ("a", "b", "c/d"):
        (folder / part).mkdir(parents=True)
        for number in range(3):
            (folder / part / f"file{number}").write_text(f"{part} {number}")
    newest = max(each.stat().st_ctime_ns for each in (folder, *folder.rglob("*")))
    while settled_before() <= newest:  # some milliseconds, until the kernel's clock has gone on
        pass
    return folder


def contents(folder: Path) -> Contents:
    return {
        str(each.relative_to(folder)): (each.stat().st_mode & 0o777, each.read_bytes())
        for each in folder.rglob("*")
        if each.is_file()
    }


class Pass:
    """One pass over a tree, in which something is done when a file is read."""

    def __init__(self, folder: Path, known: TreeTable | None = None) -> None:
        self.folder = folder
        self.blobs: dict[str, bytes] = {}
        self.reads = 0
        self.do: Callable[[int], Any] = lambda _: None
        self.reader = TreeReader(
            known or TreeTable(), self._store, max_file_bytes=1000, deadline=time.monotonic() + 60
        )

    def _store(self, name: str, data: bytes) -> None:
        self.blobs[name] = data
        self.reads += 1
        self.do(self.reads)

    def run(self) -> TreeReader:
        root = os.open(self.folder, os.O_RDONLY)
        try:
            self.reader.read(root, 1000)
        finally:
            os.close(root)
        return self.reader

    def contents(self) -> Contents:
        return {
            os.fsdecode(path): (entry.mode, self.blobs[entry.content])
            for path, entry in self.reader.table.entries.items()
            if entry.kind == "file"
        }


def change(folder: Path, chance: random.Random) -> None:
    """Do one of what an agent may do to a tree."""
    files = sorted(each for each in folder.rglob("file*") if each.is_file())
    folders = sorted(each for each in folder.rglob("*") if each.is_dir())
    one, where = chance.choice(files), chance.choice(folders)
    match chance.randrange(7):
        case 0:
            one.write_text(f"{chance.random()}")
        case 1:
            one.rename(where / f"file-moved{chance.random()}")
        case 2:
            one.unlink()
        case 3:
            (where / f"file-new{chance.random()}").write_text("new")
        case 4:
            one.chmod(0o755)
        case 5:
            one.replace(chance.choice(files))
        case _:
            target = folder / f"moved{chance.random()}"
            where.rename(target)


@pytest.mark.parametrize("seed", range(40))
def test_a_pass_says_it_is_of_one_moment_only_if_it_is_the_tree_of_its_beginning(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    one = Pass(made(tmp_path))
    before, at = contents(tmp_path), chance.randint(1, 9)
    one.do = lambda reads: change(tmp_path, chance) if reads == at else None
    if one.run().of_one_moment:
        assert one.contents() == before


def test_a_tree_that_nobody_touches_is_read_in_one_pass(tmp_path: Path) -> None:
    one = Pass(made(tmp_path))
    assert one.run().of_one_moment
    assert one.contents() == contents(tmp_path)
    again = Pass(tmp_path, one.reader.table)
    assert again.run().of_one_moment
    assert again.reads == 0


@pytest.mark.parametrize("what", ["content", "mode", "moved", "new", "gone"])
def test_what_changes_during_a_pass_is_found_by_the_next_one(tmp_path: Path, what: str) -> None:
    made(tmp_path)
    left = [1]

    def store(name: str, data: bytes) -> None:
        """Take the content of one file, while another one is changed."""
        if not left[0]:
            return
        left[0] -= 1
        other = tmp_path / ("b" if data.startswith(b"a") else "a") / "file1"
        match what:
            case "content":
                other.write_text("changed")
            case "mode":
                other.chmod(0o755)
            case "moved":
                other.rename(tmp_path / "c" / "d" / "moved")
            case "new":
                (other.parent / "new").write_text("new")
            case _:
                other.unlink()

    root = os.open(tmp_path, os.O_RDONLY)
    job = {"table": None, "max_file_bytes": 1000, "max_entries": 1000, "only": []}
    table, torn = program._read(job, root, TreeTable(), store, time.monotonic() + 60)
    os.close(root)
    assert not torn
    found = {
        os.fsdecode(path): (entry.mode, entry.content)
        for path, entry in table.entries.items()
        if entry.kind == "file"
    }
    assert found == {
        path: (mode, tree_reader.blob_name(data))
        for path, (mode, data) in contents(tmp_path).items()
    }


def test_a_pass_over_which_the_clock_was_set_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Pass(made(tmp_path))
    real = tree_reader._clocks
    one.do = lambda _: monkeypatch.setattr(
        tree_reader, "_clocks", lambda: real() - 3_600_000_000_000
    )
    assert not one.run().of_one_moment
    assert one.reader.steady
