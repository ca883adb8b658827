"""Changes of files that `.gitignore` names are not shown, unless they came with the workspace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.snapshots.history_records import DiffAnswer, DiffQuestion

if TYPE_CHECKING:
    from tests.unit.runtime.snapshots.conftest import Shadow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def diff(shadow: Shadow, **asked: Any) -> DiffAnswer:
    answer = await shadow.repository.answer(DiffQuestion(session_id="ses_1", **asked))
    assert isinstance(answer, DiffAnswer)
    return answer


def write(shadow: Shadow, **files: str) -> None:
    for name, text in files.items():
        path = shadow.workspace / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def paths(answer: DiffAnswer) -> list[str]:
    return [each.path for each in answer.changes]


async def test_ignored_files_are_counted_and_not_shown(shadow: Shadow) -> None:
    write(shadow, _gitignore="*.pyc\nbuild/\n!keep.pyc\n")
    await shadow.turn(1, "start")
    write(shadow, main_py="x", main_pyc="x", keep_pyc="x", build__deep__out="x", sub__other_pyc="x")
    await shadow.turn(1)
    answer = await diff(shadow, patch=True, most=100_000)
    assert paths(answer) == ["keep.pyc", "main.py"]
    assert b"main.pyc" not in answer.patch
    assert answer.between is not None
    assert answer.between.ignored == 3
    everything = await diff(shadow, ignored=True)
    assert len(everything.changes) == 5
    assert everything.between is not None
    assert everything.between.ignored == 0


async def test_a_gitignore_of_a_folder_counts_below_it_alone(shadow: Shadow) -> None:
    await shadow.turn(1, "start")
    write(shadow, sub___gitignore="*\n!.gitignore\n", sub__file="x", other__file="x")
    await shadow.turn(1)
    assert paths(await diff(shadow)) == ["other/file", "sub/.gitignore"]


async def test_what_came_with_the_workspace_is_shown_though_it_is_ignored(shadow: Shadow) -> None:
    write(shadow, _gitignore="*.lock\n", kept_lock="1\n", gone_lock="1\n")
    await shadow.turn(1, "start")
    write(shadow, kept_lock="2\n", new_lock="1\n")
    (shadow.workspace / "gone.lock").unlink()
    await shadow.turn(1)
    assert paths(await diff(shadow)) == ["gone.lock", "kept.lock"]


async def test_what_an_earlier_turn_made_stays_ignored(shadow: Shadow) -> None:
    await shadow.turn(1, "start")
    write(shadow, _gitignore="*.pyc\n", main_pyc="1")
    await shadow.turn(1)
    write(shadow, main_pyc="2", main_py="x")
    await shadow.turn(2)
    assert paths(await diff(shadow, turn=2)) == ["main.py"]
    (shadow.workspace / "main.pyc").unlink()
    await shadow.turn(3)
    assert paths(await diff(shadow, turn=3)) == []


async def test_large_files_that_are_ignored_are_not_said_to_be_missing(shadow: Shadow) -> None:
    write(shadow, _gitignore="*.big\n")
    await shadow.turn(1, "start")
    for name in ("ignored.big", "wanted"):
        with (shadow.workspace / name).open("wb") as file:
            os.truncate(file.fileno(), shadow.limits.max_file_bytes + 1)
    await shadow.turn(1)
    assert list((await diff(shadow)).left_out) == ["wanted"]
    assert list((await diff(shadow, ignored=True)).left_out) == ["ignored.big", "wanted"]


async def test_rules_are_read_from_snapshots_and_through_no_link(shadow: Shadow) -> None:
    rules = shadow.workspace.parent / "rules"
    rules.write_text("*\n")
    (shadow.workspace / ".gitignore").symlink_to(rules)
    await shadow.turn(1, "start")
    write(shadow, file="x")
    await shadow.turn(1)
    (shadow.workspace / ".gitignore").unlink()
    (shadow.workspace / ".gitignore").write_text("*\n")
    assert paths(await diff(shadow, to_turn=1)) == ["file"]
    assert not list(shadow.folder.glob("index-*"))


async def test_rules_of_a_megabyte_are_not_read(shadow: Shadow) -> None:
    await shadow.turn(1, "start")
    write(
        shadow, _gitignore="*\n" + "#" * 1_000_000, file="x", sub___gitignore="*\n", sub__file="x"
    )
    await shadow.turn(1)
    assert paths(await diff(shadow)) == [".gitignore", "file", "sub/.gitignore"]


async def test_names_of_any_bytes_are_matched(shadow: Shadow) -> None:
    await shadow.turn(1, "start")
    write(shadow, _gitignore="*.tmp\n")
    for name in (b"a\nb.tmp", b"\xff\xfe.tmp", b":(top)x.tmp", b"a\nb", b"\xff\xfe", b"[x]*"):
        (shadow.workspace / os.fsdecode(name)).touch()
    await shadow.turn(1)
    answer = await diff(shadow)
    assert answer.between is not None
    assert answer.between.ignored == 3
    assert len(answer.changes) == 4
