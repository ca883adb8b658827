"""Copies of snapshots in parts: what each has, when they are made one, and what is refused."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oubliette.errors import Conflict, LimitExceeded, OublietteError, RuntimeFailure
from oubliette.runtime.snapshots import bundles
from oubliette.runtime.snapshots.bundles import BundledCopies
from oubliette.runtime.snapshots.copies import CopyName
from oubliette.runtime.snapshots.second_place import SecondPlace
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs
from tests import selection
from tests.unit.runtime.snapshots.conftest import Shadow
from tests.unit.runtime.snapshots.part_folder import PartFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

NAME = CopyName("project", "workspace")


class World:
    """A keeper of parts, and the copies in it."""

    def __init__(self, folder: Path, git: GitProgram, max_bytes: int = 1 << 30) -> None:
        self.parts = PartFolder(folder)
        self.place = SecondPlace(BundledCopies(self.parts, git, 60.0, max_bytes), git, 60.0)

    async def send(self, shadow: Shadow) -> None:
        await self.place.send(shadow.repository, NAME)

    @property
    def sizes(self) -> list[int]:
        return [part.bytes for part in self.parts.records[NAME].parts]


@pytest.fixture
def world(tmp_path: Path, git: GitProgram) -> World:
    return World(tmp_path / "parts", git)


async def test_a_part_has_only_what_is_new(shadow: Shadow, world: World) -> None:
    (shadow.workspace / "large").write_bytes(os.urandom(1 << 20))
    await shadow.turn(1)
    await world.send(shadow)
    (shadow.workspace / "small").write_text("text")
    await shadow.turn(2)
    await world.send(shadow)
    first, second = world.sizes
    assert first > 1 << 20
    assert second < 4096
    await world.send(shadow)
    assert len(world.sizes) == 2, "nothing is new"
    assert not list(shadow.folder.glob("unsent-*"))


async def test_snapshots_without_a_change_come_along(
    shadow_of: Callable[..., Shadow], world: World
) -> None:
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    (alpha.workspace / "file").write_text("one")
    await alpha.turn(1)
    await world.send(alpha)
    await alpha.turn(2, "start")
    (alpha.workspace / "file").write_text("two")
    await alpha.turn(2)
    await world.send(alpha)
    await world.place.bring(beta.repository, NAME, 1.0)
    assert await beta.repository.snapshots() == await alpha.repository.snapshots()
    assert "second-turns" not in await beta.run("for-each-ref")


async def test_many_parts_are_made_one(
    shadow_of: Callable[..., Shadow], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "MAX_PARTS", 3)
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    counts = []
    for turn in range(1, 6):
        (alpha.workspace / "file").write_text(str(turn))
        await alpha.turn(turn)
        await world.send(alpha)
        counts.append(len(world.sizes))
    assert counts == [1, 2, 3, 1, 2]
    assert len(list(world.parts.folder.iterdir())) == 2, "the parts before are removed"
    await world.place.bring(beta.repository, NAME, 1.0)
    assert beta.tree() == alpha.tree()
    await beta.restore(2)
    assert (beta.workspace / "file").read_text() == "2"


async def test_large_parts_are_made_one(
    shadow: Shadow, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "SLACK_BYTES", 1000)
    for turn in range(1, 4):
        (shadow.workspace / "file").write_bytes(os.urandom(10_000))
        await shadow.turn(turn)
        await world.send(shadow)
    assert len(world.sizes) == 1
    assert world.sizes[0] > 30_000


async def test_a_copy_above_its_limit_stays_as_it_was(
    shadow_of: Callable[..., Shadow], tmp_path: Path, git: GitProgram
) -> None:
    world = World(tmp_path / "parts", git, max_bytes=20_000)
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    (alpha.workspace / "small").write_text("text")
    await alpha.turn(1)
    await world.send(alpha)
    (alpha.workspace / "large").write_bytes(os.urandom(30_000))
    await alpha.turn(2)
    with pytest.raises(LimitExceeded, match=r"cluster\.snapshots_max_bytes \(20000\)"):
        await world.send(alpha)
    assert len(list(world.parts.folder.iterdir())) == 1
    await world.place.bring(beta.repository, NAME, 1.0)
    assert (beta.workspace / "small").exists()
    assert not (beta.workspace / "large").exists()


async def test_another_holder_gets_all_of_it(shadow: Shadow, world: World) -> None:
    for turn in (1, 2):
        (shadow.workspace / "file").write_text(str(turn))
        await shadow.turn(turn)
        await world.send(shadow)
    assert len(world.sizes) == 2
    world.parts.chosen = "two"
    await world.send(shadow)
    assert len(world.sizes) == 1
    assert world.parts.records[NAME].holder == "two"


async def test_a_damaged_or_missing_part_is_refused_and_changes_nothing(
    shadow_of: Callable[..., Shadow], world: World
) -> None:
    alpha, beta = shadow_of("alpha"), shadow_of("beta")
    (alpha.workspace / "file").write_text("one")
    await alpha.turn(1)
    await world.send(alpha)
    (part,) = world.parts.folder.iterdir()
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(RuntimeFailure, match="damaged"):
        await world.place.bring(beta.repository, NAME, 1.0)
    assert beta.tree() == {}
    part.unlink()
    with pytest.raises((OublietteError, OSError)):
        await world.place.bring(beta.repository, NAME, 1.0)
    assert not list(beta.folder.glob("unsent-*"))


async def test_of_two_that_send_at_once_one_is_refused(
    shadow_of: Callable[..., Shadow], world: World
) -> None:
    alpha = shadow_of("alpha")
    (alpha.workspace / "file").write_text("one")
    await alpha.turn(1)
    await world.send(alpha)
    record = world.parts.records[NAME]
    with pytest.raises(Conflict):
        await world.parts.publish(NAME, record)


@pytest.mark.whole
@settings(
    max_examples=selection.examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    turns=st.lists(
        st.tuples(
            st.sampled_from(["file", ".git/config", "deep/er/file", ".gitattributes"]),
            st.binary(max_size=3000),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_was_sent_is_brought_whole(
    turns: list[tuple[str, bytes, bool]], tmp_path_factory: pytest.TempPathFactory, git: GitProgram
) -> None:
    async def run() -> None:
        async with contextlib.aclosing(WorkspaceJobs()) as jobs:
            await sent_and_brought(jobs)

    async def sent_and_brought(jobs: WorkspaceJobs) -> None:
        base = tmp_path_factory.mktemp("copies")
        world = World(base / "parts", git)
        alpha, beta = Shadow(base / "alpha", git, jobs), Shadow(base / "beta", git, jobs)
        wanted = {}
        for number, (name, content, send) in enumerate(turns, 1):
            path = alpha.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            taken = await alpha.turn(number)
            if send and taken.commit is not None:
                await world.send(alpha)
                wanted = alpha.tree()
        await world.place.bring(beta.repository, NAME, 1.0)
        assert beta.tree() == wanted
        shutil.rmtree(base)

    anyio.run(run)
