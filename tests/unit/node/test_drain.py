"""DrainActor and ArrivalsActor of one node, over a real store; the other node is played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oubliette.actors.messages import EndSession
from oubliette.actors.project.supervisor import HoldProject, ReleaseProject
from oubliette.actors.session_registry import REGISTRY, EnterSession
from oubliette.errors import Conflict, InvalidParameter, RuntimeFailure, Unavailable
from oubliette.kit import Actor, handles
from oubliette.node import project_files
from oubliette.node.drain import DrainActor, MoveMisplaced, SetDraining
from oubliette.node.moving import ArrivalsActor, DiscardProject, ReceiveChunk, UnpackProject
from oubliette.records import Event
from oubliette.runtime.store.operations import AppendEvents, PutSession
from tests.unit.actors import fakes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from oubliette.kit import Ref
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with fakes.world(tmp_path) as made:
        yield made


class Homes:
    """The homes of projects, of which one other node may take some."""

    def __init__(self, world: World, *here: str) -> None:
        self.here = set(here)
        self.room = False
        self.packed: list[str] = []
        """Projects whose packed files were still here when they were handed over."""
        self._home = world.context.home
        self.unfit: set[str] = set()
        """Projects that were taken over and do not fit here."""
        self.system = world.system
        world.record("trees")

    async def projects_here(self) -> frozenset[str]:
        return frozenset(self.here)

    async def misplaced(self) -> list[str]:
        return sorted(self.unfit & self.here)

    async def is_here(self, project_id: str) -> bool:
        return project_id in self.here

    async def choose_for(self, project_id: str) -> str:
        if not self.room:
            raise Unavailable(f"no node has room for {project_id}")
        return "other"

    async def hand_over(self, project_id: str, node: str) -> bool:
        if project_files.packed(self._home, project_id).exists():
            self.packed.append(project_id)
        self.here.remove(project_id)
        return node == "other"

    def ref(self, node: str, name: str) -> Ref:
        return self.system.ref(f"{node}-{name}")


class Working(Actor):
    """A session that has a turn to end at first."""

    def __init__(self, asked: list[EndSession]) -> None:
        super().__init__()
        self._asked = asked
        self.rests = False

    @handles(EndSession)
    def _end(self, message: EndSession) -> str:
        self._asked.append(message)
        if message.at_rest and len(self._asked) == 1:
            raise Conflict("the session has a turn to end first")
        return "completed"


async def working(world: World, project_id: str) -> tuple[str, list[EndSession]]:
    project = await world.reader.project(project_id)
    assert project is not None
    session = await world.session(project)
    asked: list[EndSession] = []
    world.system.spawn(Working, asked, name=f"session-{session.id}")
    entry = EnterSession(session_id=session.id, name=f"session-{session.id}", supervisor="store")
    await world.system.ref(REGISTRY).ask(entry)
    return session.id, asked


def drained(world: World, homes: Homes, *, draining: bool = True) -> Ref:
    drain = world.system.spawn(
        DrainActor, world.context, cast("Any", homes), world.context.home, name="drain"
    )
    drain.tell(SetDraining(draining=draining))
    return drain


async def test_a_session_is_ended_once_its_turn_has_ended_and_can_be_resumed(world: World) -> None:
    project = await world.project()
    session_id, asked = await working(world, project.id)
    drained(world, Homes(world, project.id))
    await world.until(lambda: asked)
    ended = Event(session_id=session_id, index=0, ts=world.clock.time(), type="status")
    await world.put(AppendEvents((ended,)))
    await world.until(lambda: len(asked) == 2)
    assert [(each.at_rest, each.final) for each in asked] == [(True, False)] * 2


async def test_a_deleted_project_whose_trees_live_on_gets_another_home(world: World) -> None:
    project = await world.project(deleted_at=1.0)
    homes = Homes(world, project.id)
    homes.room = True
    drained(world, homes)
    await world.until(lambda: not homes.here)


async def test_turns_that_do_not_end_are_interrupted_when_their_time_is_over(world: World) -> None:
    project = await world.project()
    _, asked = await working(world, project.id)
    drained(world, Homes(world, project.id))
    await world.until(lambda: asked)
    await world.settle(world.config.cluster.drain_seconds)
    await world.until(lambda: len(asked) == 2)
    assert not asked[1].at_rest
    assert not asked[1].final


async def test_a_project_that_no_node_can_take_stays_and_is_tried_again(world: World) -> None:
    project = await world.project()
    homes = Homes(world, project.id)
    held = world.record("projects")
    arrived = world.record("other-arrivals")
    drained(world, homes)
    await world.settle()
    assert held == []
    homes.room = True
    await world.until(lambda: not homes.here, seconds=1.0)
    await world.until(lambda: len(held) == 2)
    assert held == [
        HoldProject(project_id=project.id),
        ReleaseProject(project_id=project.id, moved=True),
    ]
    assert [type(each) for each in arrived][-1] is UnpackProject


async def test_packed_files_are_gone_before_the_project_can_come_back(world: World) -> None:
    project = await world.project()
    homes = Homes(world, project.id)
    homes.room = True
    held = world.record("projects")
    world.record("other-arrivals")
    drained(world, homes)
    await world.until(lambda: len(held) == 2)
    assert homes.packed == []
    assert not project_files.packed(world.context.home, project.id).exists()


async def test_a_node_that_is_not_drained_any_more_keeps_its_projects(world: World) -> None:
    project = await world.project()
    homes = Homes(world, project.id)
    drain = drained(world, homes)
    await world.settle()
    await drain.ask(SetDraining(draining=False))
    homes.room = True
    await world.settle(60.0)
    assert homes.here == {project.id}


async def test_a_project_that_was_taken_over_and_does_not_fit_moves_once_nothing_lives(
    world: World,
) -> None:
    project, other = await world.project(), await world.project(name="other")
    session_id, asked = await working(world, project.id)
    homes = Homes(world, project.id, other.id)
    homes.room, homes.unfit = True, {project.id}
    held = world.record("projects")
    world.record("other-arrivals")
    drain = drained(world, homes, draining=False)
    drain.tell(MoveMisplaced())
    await world.settle(6.0)
    assert (asked, held) == ([], [])
    session = await world.reader.session(session_id)
    ended = msgspec.structs.replace(session, status="failed")
    await world.put(PutSession(ended))
    await world.until(lambda: not homes.here & homes.unfit, seconds=1.0)
    assert homes.here == {other.id}


# ---------------------------------------------------------------- arrivals
async def test_files_arrive_in_parts_and_in_their_order(world: World, tmp_path: Path) -> None:
    project = await world.project()
    path, sha256 = project_files.pack(world.context.home, project.id)
    content = path.read_bytes()
    there = tmp_path / "there"
    there.mkdir()
    arrivals = world.system.spawn(ArrivalsActor, there, cast("Any", Homes(world)), name="arrivals")
    half = len(content) // 2

    async def part(offset: int, data: bytes) -> None:
        await arrivals.ask(ReceiveChunk(project_id=project.id, offset=offset, data=data))

    await part(0, content[:half])
    with pytest.raises(RuntimeFailure, match="part at"):
        await part(half + 1, content[half:])
    await part(half, content[half:])
    await arrivals.ask(UnpackProject(project_id=project.id, sha256=sha256))
    assert (there / "projects" / project.id / "metadata.json").exists()
    await arrivals.ask(DiscardProject(project_id=project.id))
    assert not (there / "projects" / project.id).exists()


async def test_the_files_of_a_project_that_lives_here_are_left_alone(world: World) -> None:
    project = await world.project()
    arrivals = world.system.spawn(
        ArrivalsActor, world.context.home, cast("Any", Homes(world, project.id)), name="arrivals"
    )
    for message in (
        ReceiveChunk(project_id=project.id, offset=0, data=b"x"),
        UnpackProject(project_id=project.id, sha256=""),
        DiscardProject(project_id=project.id),
    ):
        with pytest.raises(InvalidParameter, match="has its home here"):
            await arrivals.ask(message)
    assert world.folders.project(project.id).exists()
