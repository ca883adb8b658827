"""Exported files: how many of a project are kept, and made at a time."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.errors import LimitExceeded, NotFound
from oubliette.runtime.snapshots.exports import (
    MAX_FILES,
    PREFIX,
    UNFINISHED,
    remove_old,
)
from oubliette.runtime.snapshots.history_records import (
    DiffQuestion,
    ExportQuestion,
    PieceAnswer,
    PieceQuestion,
)
from oubliette.runtime.snapshots.shadow_repository import ShadowRepository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.runtime.snapshots.conftest import Shadow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

BUNDLE = ExportQuestion(format="bundle", range=DiffQuestion(session_id="ses_1"), most=10)


@pytest.fixture
async def workspaces(shadow_of: Callable[..., Shadow], tmp_path: Path) -> list[Shadow]:
    """Two workspaces of a project, with a snapshot each."""
    made = [shadow_of(name) for name in ("one", "two")]
    for each in made:
        each.folder = tmp_path / "snapshots" / f"{each.workspace.parent.name}.git"
        each.repository = ShadowRepository(
            each.folder, each.workspace, each.git, each.jobs, each.limits
        )
        (each.workspace / "file").write_text("text\n")
        await each.turn(1)
    return made


async def export(shadow: Shadow) -> PieceAnswer:
    answer = await shadow.repository.answer(BUNDLE)
    assert isinstance(answer, PieceAnswer)
    return answer


def files(workspaces: list[Shadow]) -> list[Path]:
    return [file for each in workspaces for file in each.folder.glob(f"{PREFIX}*")]


async def test_the_files_of_all_workspaces_of_a_project_have_one_limit(
    workspaces: list[Shadow],
) -> None:
    made: list[tuple[Shadow, PieceAnswer]] = []
    for number in range(MAX_FILES + 2):
        shadow = workspaces[number % 2]
        made.append((shadow, await export(shadow)))
        file = shadow.folder / f"{PREFIX}{made[-1][1].file}"
        os.utime(file, (1e9 + number, 1e9 + number))  # their order, whatever the clock's grain
    assert len(files(workspaces)) == MAX_FILES
    for number, (shadow, answer) in enumerate(made):
        piece = PieceQuestion(file=answer.file, offset=0, most=10)
        if number < 2:
            with pytest.raises(NotFound, match="not kept any more"):
                await shadow.repository.answer(piece)
        else:
            assert (await shadow.repository.answer(piece)).data == answer.data


async def test_files_that_are_being_made_are_limited_too_and_stay(
    workspaces: list[Shadow], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = workspaces
    begun = [
        (workspaces[number % 2].folder / f"{PREFIX}{number}").with_suffix(UNFINISHED)
        for number in range(MAX_FILES)
    ]
    for file in begun:
        file.touch()
    with pytest.raises(LimitExceeded, match="being exported from this project already"):
        await export(first)
    assert sorted(files(workspaces)) == sorted(begun)
    # Those of a server that was killed are in nobody's way.
    for file in begun:
        os.utime(file, (1e9, 1e9))
    await export(second)
    assert len(files(workspaces)) == MAX_FILES
    for each in workspaces:
        remove_old(each.folder)
    assert len(files(workspaces)) == 1


async def test_an_export_that_fails_or_is_cancelled_leaves_nothing(
    workspaces: list[Shadow], monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow, begun = workspaces[0], asyncio.Event()

    async def hang(*_: Any, file: Path, **__: Any) -> None:
        file.touch()
        begun.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(shadow.git, "write_file", hang)
    running = asyncio.ensure_future(export(shadow))
    await begun.wait()
    assert [each.suffix for each in files(workspaces)] == [UNFINISHED]
    running.cancel()
    await asyncio.wait([running])
    assert files(workspaces) == []
