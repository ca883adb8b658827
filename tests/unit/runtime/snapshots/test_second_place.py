"""A workspace is found on another node as its last snapshot has it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.runtime.snapshots.bundles import BundledCopies
from oubliette.runtime.snapshots.copies import CopyName
from oubliette.runtime.snapshots.second_place import SecondPlace
from oubliette.runtime.snapshots.shared_folder import SharedFolder
from tests.unit.runtime.snapshots.part_folder import PartFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.runtime.snapshots.git_program import GitProgram
    from tests.unit.runtime.snapshots.conftest import Shadow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

NAME = CopyName("project", "workspace")


@pytest.fixture(params=["folder", "parts"])
def place(request: pytest.FixtureRequest, tmp_path: Path, git: GitProgram) -> SecondPlace:
    shared = tmp_path / "shared"
    if request.param == "folder":
        return SecondPlace(SharedFolder(shared, git, 60.0), git, 60.0)
    return SecondPlace(BundledCopies(PartFolder(shared), git, 60.0, 1 << 30), git, 60.0)


async def test_the_files_of_a_lost_node_are_found_on_another(
    shadow_of: Callable[..., Shadow], place: SecondPlace
) -> None:
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    (alpha.workspace / "file").write_text("one")
    (alpha.workspace / ".git").mkdir()
    (alpha.workspace / ".git" / "config").write_text("of the agent")
    (alpha.workspace / "empty").mkdir()
    await alpha.turn(1)
    await place.send(alpha.repository, NAME)
    (alpha.workspace / "file").write_text("two")
    await alpha.turn(2)
    await place.send(alpha.repository, NAME)
    before = alpha.tree()
    shutil.rmtree(alpha.workspace)
    shutil.rmtree(alpha.folder)

    brought = await place.bring(beta.repository, NAME, 1.0)
    assert brought is not None
    assert (brought.written, brought.missing) == (2, 0)
    assert beta.tree() == before
    (beta.workspace / "file").write_text("three")
    assert (await beta.turn(3)).files == 1
    await place.send(beta.repository, NAME)
    await beta.restore(1)
    assert (beta.workspace / "file").read_text() == "one", "earlier turns came along"


async def test_a_node_that_comes_back_gets_what_was_done_meanwhile_and_keeps_its_own(
    shadow_of: Callable[..., Shadow], place: SecondPlace
) -> None:
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    (alpha.workspace / "file").write_text("one")
    await alpha.turn(1)
    await place.send(alpha.repository, NAME)
    (alpha.workspace / "late").write_text("when the node was given up")
    await place.bring(beta.repository, NAME, 1.0)
    (beta.workspace / "file").write_text("two")
    await beta.turn(2)
    await place.send(beta.repository, NAME)

    assert await place.bring(alpha.repository, NAME, 5.0) is not None
    assert (alpha.workspace / "file").read_text() == "two"
    assert not (alpha.workspace / "late").exists()
    await alpha.repository.restore("refs/oubliette/workspace/5-final")
    assert (alpha.workspace / "late").exists()


async def test_a_node_that_was_given_up_cannot_undo_what_another_has_stored(
    shadow_of: Callable[..., Shadow], place: SecondPlace
) -> None:
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    (alpha.workspace / "file").write_text("one")
    await alpha.turn(1)
    await place.send(alpha.repository, NAME)
    await place.bring(beta.repository, NAME, 1.0)
    (beta.workspace / "file").write_text("two")
    await beta.turn(2)
    await place.send(beta.repository, NAME)
    (alpha.workspace / "file").write_text("of the past")
    await alpha.turn(3)
    with pytest.raises(RuntimeFailure):
        await place.send(alpha.repository, NAME)
    gamma = shadow_of("gamma")
    await place.bring(gamma.repository, NAME, 1.0)
    assert (gamma.workspace / "file").read_text() == "two"


async def test_a_workspace_that_is_the_newest_is_left_alone(
    shadow_of: Callable[..., Shadow], place: SecondPlace
) -> None:
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    assert await place.bring(alpha.repository, NAME, 1.0) is None, "nothing was ever stored"
    (alpha.workspace / "file").write_text("one")
    await alpha.turn(1)
    await place.send(alpha.repository, NAME)
    (alpha.workspace / "file").write_text("two")
    assert await place.bring(alpha.repository, NAME, 1.0) is None
    assert (alpha.workspace / "file").read_text() == "two"
    (beta.workspace / "own").write_text("was never stored")
    assert await place.bring(beta.repository, NAME, 1.0) is None
    assert (beta.workspace / "own").exists()


async def test_a_place_that_cannot_be_used_is_named(
    shadow: Shadow, tmp_path: Path, git: GitProgram
) -> None:
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RuntimeFailure, match=r"cluster\.snapshots"):
        await SharedFolder(tmp_path / "file", git, 60.0).send(shadow.folder, NAME)


async def test_changes_of_what_git_does_not_want_are_sent_and_brought_too(
    shadow_of: Callable[..., Shadow], place: SecondPlace
) -> None:
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    (alpha.workspace / "file").write_text("one")
    await alpha.turn(1)
    await place.send(alpha.repository, NAME)
    assert await place.bring(beta.repository, NAME, 1.0) is not None
    (alpha.workspace / ".git").mkdir()
    (alpha.workspace / ".git" / "config").write_text("of the agent")
    await alpha.turn(2)
    await place.send(alpha.repository, NAME)
    assert await place.bring(beta.repository, NAME, 2.0) is not None
    assert beta.tree() == alpha.tree()


async def test_the_copies_of_a_project_are_removed(
    shadow: Shadow, shadow_of: Callable[..., Shadow], place: SecondPlace
) -> None:
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    await place.send(shadow.repository, NAME)
    assert await place.copies.projects() == ["project"]
    await place.copies.forget("project")
    assert await place.copies.projects() == []
    assert await place.bring(shadow_of("beta").repository, NAME, 1.0) is None


async def test_one_copy_is_removed_and_may_begin_again(
    shadow: Shadow, shadow_of: Callable[..., Shadow], place: SecondPlace
) -> None:
    await place.copies.drop(NAME)
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    await place.send(shadow.repository, NAME)
    await place.copies.drop(NAME)
    assert await place.bring(shadow_of("beta").repository, NAME, 1.0) is None
    (shadow.workspace / "file").write_text("two")
    await shadow.turn(2)
    await place.send(shadow.repository, NAME)
    gamma = shadow_of("gamma")
    assert await place.bring(gamma.repository, NAME, 1.0) is not None
    assert gamma.tree() == shadow.tree()
