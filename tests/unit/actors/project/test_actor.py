"""The actor of one project: who may start what in it, and what is recorded of that."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.messages import (
    DeleteWorkspace,
    EndSession,
    Idempotency,
    OpenContainer,
    SpawnResult,
    SpawnSession,
)
from oubliette.actors.project.actor import CloseProject, ProjectActor
from oubliette.actors.snapshot_requests import SNAPSHOTS, StoreLast
from oubliette.actors.tree.supervisor import TreesActor
from oubliette.config.schema import Config, SessionsConfig
from oubliette.errors import (
    Conflict,
    InvalidParameter,
    LimitExceeded,
    NotFound,
    SessionHandover,
)
from oubliette.kit import Actor, StopChild, WhichChildren, handles
from oubliette.records import Container
from oubliette.runtime.snapshots.history_records import Losses
from oubliette.runtime.store.operations import PutContainer

if TYPE_CHECKING:
    from oubliette.kit import Deferred
    from oubliette.records import Project
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


class Scene:
    """One project, with the actors that it asks for room and for callers."""

    def __init__(self, world: World, project: Project) -> None:
        self.world, self.project = world, project
        context = world.context
        system = world.system
        system.spawn(CallersActor, world.store, world.reader, world.config.callers, name="callers")
        system.spawn(TreesActor, context, name="trees")
        self.ref = system.ref("project")
        self.begin()

    def begin(self) -> None:
        self.world.system.spawn(ProjectActor, self.world.context, self.project, name="project")

    async def spawn(self, prompt: str = "hello", **fields: Any) -> SpawnResult:
        return await self.ref.ask(SpawnSession(principal="alice", prompt=prompt, **fields))

    def heard(self) -> list[str]:
        guests = list(self.world.runtime.guests.values())
        processes = [process for guest in guests for process in guest.processes.values()]
        return [said["text"] for process in processes for said in process.heard if "text" in said]

    async def end(self, session_id: str) -> None:
        ref = self.world.context.session_registry.session(session_id)
        assert ref is not None
        await ref.ask(EndSession())
        await self.world.until(lambda: not ref.is_alive(), seconds=0.1)


@pytest.fixture
async def scene(world: World) -> Scene:
    return Scene(world, await world.project())


async def test_a_session_is_recorded_with_its_turn_and_its_agent_is_prompted(
    scene: Scene,
) -> None:
    result = await scene.spawn("build it")
    assert (result.spawned, result.turn, result.workspace_created) == (True, 1, False)
    record = await scene.world.reader.session(result.session_id)
    assert record is not None
    assert (record.principal, record.workspace_id) == ("alice", scene.project.default_workspace_id)
    await scene.world.until(scene.heard)
    assert scene.heard() == ["build it"]


async def test_the_next_message_goes_to_the_session_that_lives(scene: Scene) -> None:
    first = await scene.spawn("one")
    await scene.world.until(scene.heard)
    second = await scene.spawn("two")
    assert (second.session_id, second.spawned, second.turn) == (first.session_id, False, 2)
    other = await scene.spawn("three", new_session=True)
    assert other.session_id != first.session_id


@pytest.mark.parametrize("message", ["prompt", "end"])
async def test_a_session_that_was_given_up_is_started_again_by_its_next_use(
    scene: Scene, message: str
) -> None:
    session = (await scene.spawn("one")).session_id
    await scene.world.until(scene.heard)
    sessions = scene.world.system.ref("project/base/sessions")
    assert await sessions.ask(StopChild(name=session))  # what giving it up leaves behind
    find = scene.world.context.session_registry.session
    await scene.world.until(lambda: find(session) is None)
    with pytest.raises(SessionHandover):
        if message == "prompt":
            await scene.spawn("two", session_id=session)
        else:
            await scene.ref.ask(EndSession(session_id=session))
    await scene.world.until(lambda: find(session) is not None)
    if message == "prompt":
        again = await scene.spawn("two", session_id=session)
        assert (again.session_id, again.spawned, again.turn) == (session, False, 2)
    else:
        await scene.end(session)


async def test_a_request_that_is_sent_again_starts_one_session(scene: Scene) -> None:
    key = Idempotency(key="k", tool="session_spawn", digest=b"d")
    first = await scene.spawn(idempotency=key)
    assert await scene.spawn(idempotency=key) == first
    with pytest.raises(Conflict, match="idempotency_key"):
        await scene.spawn(idempotency=Idempotency(key="k", tool="session_spawn", digest=b"e"))
    assert len(await scene.world.reader.live_sessions(scene.project.id)) == 1


async def test_more_live_sessions_than_the_configuration_allows_are_refused(
    world: World,
) -> None:
    world.configure(Config(sessions=SessionsConfig(max_live_per_project=1)))
    scene = Scene(world, await world.project())
    await scene.spawn()
    with pytest.raises(LimitExceeded, match="max_live_per_project"):
        await scene.spawn(new_session=True)
    assert len(await scene.world.reader.live_sessions(scene.project.id)) == 1


async def test_an_agent_that_is_not_here_is_refused_and_nothing_is_recorded(
    scene: Scene,
) -> None:
    with pytest.raises(InvalidParameter, match="there is no agent"):
        await scene.spawn(agent="nobody")
    assert await scene.world.reader.live_sessions(scene.project.id) == []


async def test_a_workspace_is_made_only_when_that_is_asked_for(scene: Scene) -> None:
    workspace_id = ids.new_uuid()
    with pytest.raises(NotFound, match="no workspace"):
        await scene.spawn(workspace_id=workspace_id)
    result = await scene.spawn(workspace_id=workspace_id, create_workspace=True)
    assert (result.workspace_id, result.workspace_created) == (workspace_id, True)
    assert scene.world.folders.workspace(scene.project.id, workspace_id).is_dir()


@pytest.mark.parametrize("make", [True, False])
async def test_a_workspace_of_another_project_is_not_there_in_any_case(
    scene: Scene, *, make: bool
) -> None:
    other = await scene.world.project(name="other")
    said: set[str] = set()
    for taken in (other.default_workspace_id, ids.new_uuid()):
        with pytest.raises(NotFound) as refused:
            await scene.spawn(workspace_id=taken, create_workspace=make and said == set())
        said.add(str(refused.value).replace(taken, "UUID"))
    assert len(said) == 1  # as if it did not exist
    assert len(await scene.world.reader.workspaces(scene.project.id)) == 1


async def test_a_session_of_somebody_else_is_not_there(scene: Scene) -> None:
    result = await scene.spawn()
    with pytest.raises(NotFound, match="no session"):
        await scene.ref.ask(
            SpawnSession(principal="mallory", prompt="hi", session_id=result.session_id)
        )


async def test_a_session_that_failed_is_resumed_and_one_that_was_ended_is_not(
    scene: Scene,
) -> None:
    failed = await scene.world.session(scene.project, prompts=(), status="failed")
    resumed = await scene.spawn("again", session_id=failed.id)
    assert (resumed.session_id, resumed.resumed, resumed.turn) == (failed.id, True, 1)
    await scene.world.until(scene.heard)
    await scene.end(failed.id)
    with pytest.raises(Conflict, match="ended") as refused:
        await scene.spawn("once more", session_id=failed.id)
    assert refused.value.hint == "start another one: new_session=true, in Python project.spawn"


async def test_a_session_that_rests_is_ended_in_the_store(scene: Scene) -> None:
    resting = await scene.world.session(scene.project, status="failed")
    assert await scene.ref.ask(EndSession(session_id=resting.id)) == "failed"
    assert (await scene.world.stored(resting)).ended_by == "session_end"


async def test_a_workspace_is_deleted_unless_it_is_the_default_or_something_lives_in_it(
    scene: Scene,
) -> None:
    default = scene.project.default_workspace_id
    with pytest.raises(Conflict, match="default workspace"):
        await scene.ref.ask(DeleteWorkspace(workspace_id=default))
    result = await scene.spawn(create_workspace=True)
    delete = DeleteWorkspace(workspace_id=result.workspace_id)
    with pytest.raises(Conflict, match="in this workspace"):
        await scene.ref.ask(delete)
    await scene.world.until(scene.heard)
    await scene.end(result.session_id)
    await scene.ref.ask(delete)
    folder = scene.world.folders.workspace(scene.project.id, result.workspace_id)
    assert not folder.exists()


class SlowSnapshots(Actor):
    """Stands for the snapshots of the workspaces, which take their time."""

    def __init__(self, asked: list[Deferred]) -> None:
        super().__init__()
        self._asked = asked

    @handles(StoreLast)
    def _store(self, _: StoreLast) -> None:
        self._asked.append(self.defer())


async def test_while_a_workspace_is_deleted_sessions_begin_in_all_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Deferred] = []
    result = await scene.spawn(create_workspace=True)
    await scene.world.until(scene.heard)
    await scene.end(result.session_id)
    delete = DeleteWorkspace(workspace_id=result.workspace_id)
    scene.world.system.spawn(SlowSnapshots, asked, name=SNAPSHOTS)
    may, remove = threading.Event(), scene.world.folders.remove_workspace

    def remove_then(*ids: str) -> None:
        assert may.wait(20)
        remove(*ids)

    monkeypatch.setattr(scene.world.folders, "remove_workspace", remove_then)
    deleted = asyncio.ensure_future(scene.ref.ask(delete))
    await scene.world.until(lambda: bool(asked))
    await scene.spawn("beside its last snapshot")
    for fields in ({"workspace_id": result.workspace_id}, {"session_id": result.session_id}):
        with pytest.raises(Conflict, match="ended|is being deleted"):
            await scene.spawn("in it", **fields)
    with pytest.raises(Conflict, match="is being deleted"):
        await scene.ref.ask(delete)
    asked[0].set(Losses(tree="t"))
    await scene.spawn("beside the removal of its files")
    with pytest.raises(NotFound):
        await scene.ref.ask(delete)
    assert not deleted.done()
    may.set()
    await deleted
    assert not scene.world.folders.workspace(scene.project.id, result.workspace_id).exists()


async def test_a_workspace_whose_last_snapshot_would_lose_something_stays(scene: Scene) -> None:
    asked: list[Deferred] = []
    result = await scene.spawn(create_workspace=True)
    await scene.world.until(scene.heard)
    await scene.end(result.session_id)
    scene.world.system.spawn(SlowSnapshots, asked, name=SNAPSHOTS)
    delete = DeleteWorkspace(workspace_id=result.workspace_id)
    deleted = asyncio.ensure_future(scene.ref.ask(delete))
    await scene.world.until(lambda: bool(asked))
    asked[0].set(Losses(tree="t", count=1, shown={"secret": "a pipe"}))
    with pytest.raises(Conflict, match="secret: a pipe"):
        await deleted
    assert scene.world.folders.workspace(scene.project.id, result.workspace_id).exists()
    await scene.spawn("in it", workspace_id=result.workspace_id)


async def test_its_successor_takes_the_live_sessions_over(scene: Scene) -> None:
    result = await scene.spawn("one")
    await scene.world.until(scene.heard)
    await scene.ref.kill()
    scene.begin()
    assert list(await scene.ref.ask(WhichChildren())) == ["base"]
    registry = scene.world.context.session_registry

    def taken_over() -> bool:
        live = registry.session(result.session_id)
        return live is not None and live.is_alive()

    await scene.world.until(taken_over)
    assert (await scene.spawn("two")).turn == 2
    assert scene.world.runtime.calls.count("start") == 1


@pytest.mark.parametrize("failed", [True, False], ids=["it failed", "it ended without an error"])
async def test_a_unit_that_ends_is_there_again(scene: Scene, *, failed: bool) -> None:
    unit = scene.world.system.ref(await scene.ref.ask(OpenContainer()))
    first = unit.incarnation
    await (unit.kill() if failed else unit.stop())
    await scene.world.until(unit.is_alive, seconds=0.1)
    assert unit.incarnation > first
    assert list(await scene.ref.ask(WhichChildren())) == ["base"]


async def test_a_session_that_was_recorded_before_it_had_a_container_is_run(world: World) -> None:
    project = await world.project()
    await world.session(project, prompts=("never run",))
    assert await world.reader.containers(project.id) == []
    scene = Scene(world, project)
    assert list(await scene.ref.ask(WhichChildren())) == ["base"]
    await world.until(scene.heard)
    assert scene.heard() == ["never run"]


async def test_a_container_in_which_no_session_lives_has_its_unit_again(world: World) -> None:
    project = await world.project()
    container = Container(
        id=ids.new_id(ids.CONTAINER),
        project_id=project.id,
        workspace_id=None,
        container_type="base",
        runtime="process",
        state="stopped",
        created_at=0.0,
        spec_hash="",
        host_key=b"k" * 32,
        folder="",
    )
    await world.put(PutContainer(container))
    scene = Scene(world, project)
    assert list(await scene.ref.ask(WhichChildren())) == ["base"]


async def test_a_project_in_which_nothing_lives_has_no_unit(scene: Scene) -> None:
    assert list(await scene.ref.ask(WhichChildren())) == []


async def test_a_project_that_is_closed_has_no_container_and_starts_no_session(
    scene: Scene,
) -> None:
    result = await scene.spawn()
    with pytest.raises(Conflict, match="in this project"):
        await scene.ref.ask(CloseProject())
    await scene.world.until(scene.heard)
    await scene.end(result.session_id)
    await scene.ref.ask(CloseProject())
    assert scene.world.runtime.running == {}
    with pytest.raises(NotFound):
        await scene.spawn()


async def test_isolated_workspaces_have_a_container_each(world: World) -> None:
    project = await world.project(workspace_isolation=True)
    other = await world.workspace(project)
    scene = Scene(world, project)
    names = [
        await scene.ref.ask(OpenContainer()),
        await scene.ref.ask(OpenContainer(workspace_id=other.id)),
    ]
    assert names == [
        f"project/base:{project.default_workspace_id}",
        f"project/base:{other.id}",
    ]
