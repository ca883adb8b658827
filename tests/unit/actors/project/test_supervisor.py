"""The supervisor of all projects: ProjectsActor."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette import failpoints, ids
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.container.messages import GetContainer, GetUnused
from oubliette.actors.messages import (
    CreateProject,
    DeleteProject,
    GetProblem,
    Idempotency,
    OpenProject,
    SpawnSession,
)
from oubliette.actors.project.supervisor import (
    UNUSED_SECONDS,
    HoldProject,
    ProjectsActor,
    TakeOverProjects,
)
from oubliette.actors.snapshot_requests import SNAPSHOTS, CloseSnapshots
from oubliette.actors.store.actor import Transact
from oubliette.actors.tree.supervisor import TreesActor
from oubliette.errors import AlreadyExists, Conflict, NotFound, RuntimeFailure, StorageUnavailable
from oubliette.kit import Actor, AskTimeout, UnhandledMessage, WhichChildren, handles
from oubliette.records import ProjectRepository
from oubliette.runtime.repositories.access import Repositories
from oubliette.runtime.store.operations import PutWorkspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.kit import Deferred, Ref
    from oubliette.records import Project
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


def begin(world: World) -> Ref:
    return world.system.spawn(ProjectsActor, world.context, name="projects")


async def create(projects: Ref, name: str = "p", key: str | None = None) -> Project:
    idempotency = key and Idempotency(key=key, tool="project_create", digest=name.encode())
    return await projects.ask(
        CreateProject(principal="alice", name=name, idempotency=idempotency or None)
    )


async def test_a_project_that_is_created_has_a_record_a_workspace_and_a_folder(
    world: World,
) -> None:
    project = await create(begin(world))
    assert await world.reader.project(project.id) == project
    assert project.owner == "alice"
    (workspace,) = await world.reader.workspaces(project.id)
    assert (workspace.id, workspace.is_default) == (project.default_workspace_id, True)
    assert world.folders.workspace(project.id, workspace.id).is_dir()


async def test_a_name_is_taken_once(world: World) -> None:
    projects = begin(world)
    first = await create(projects)
    with pytest.raises(AlreadyExists):
        await create(projects)
    assert [path.name for path in world.folders.projects.iterdir()] == [first.id]


async def test_a_request_that_is_sent_again_makes_one_project(world: World) -> None:
    projects = begin(world)
    first = await create(projects, key="k")
    assert await create(projects, key="k") == first
    with pytest.raises(Conflict, match="idempotency_key"):
        await create(projects, "q", key="k")
    assert await world.reader.project_named("q") is None


async def test_a_project_whose_folder_cannot_be_made_does_not_exist(world: World) -> None:
    projects = begin(world)
    world.folders.projects.rmdir()
    world.folders.projects.write_text("no folder")
    with pytest.raises(RuntimeFailure, match="folder cannot be made"):
        await create(projects)
    assert await world.reader.project_named("p") is None
    world.folders.projects.unlink()
    world.folders.projects.mkdir(mode=0o700)
    assert (await create(projects)).name == "p"


async def test_a_name_that_is_taken_is_refused_before_anything_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects = begin(world)
    await create(projects)
    made: list[Project] = []
    monkeypatch.setattr(world.folders, "create_project", made.append)
    with pytest.raises(AlreadyExists):
        await create(projects)
    assert made == []


async def test_what_was_made_of_a_project_that_failed_half_way_is_removed(world: World) -> None:
    projects = begin(world)
    failpoints.activate("project.folders_made=raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            await create(projects)
    finally:
        failpoints.activate("")
    assert list(world.folders.projects.iterdir()) == []
    assert await world.reader.project_named("p") is None


class ForgetfulStore:
    """Commits, and once loses the answer: that to the creation of a project's workspace."""

    def __init__(self, store: Ref) -> None:
        self._store = store
        self.lost = False

    async def ask(self, message: Transact) -> Any:
        answer = await self._store.ask(message)
        if not self.lost and any(isinstance(op, PutWorkspace) for op in message.ops):
            self.lost = True
            raise AskTimeout("no answer")
        return answer


async def test_a_project_of_which_only_the_answer_was_lost_keeps_its_folders(world: World) -> None:
    store: Any = ForgetfulStore(world.store)
    world.context = dataclasses.replace(world.context, store=store)
    with pytest.raises(AskTimeout):
        await create(begin(world))
    project = await world.reader.project_named("p")
    assert project is not None
    assert world.folders.workspace(project.id, project.default_workspace_id).is_dir()


async def test_a_project_is_opened_once_and_only_where_there_is_one(world: World) -> None:
    projects, project = begin(world), await world.project()
    name = await projects.ask(OpenProject(project_id=project.id))
    first = world.system.ref(name).incarnation
    assert await projects.ask(OpenProject(project_id=project.id)) == name
    assert world.system.ref(name).incarnation == first
    with pytest.raises(NotFound, match="no project proj_none"):
        await projects.ask(OpenProject(project_id="proj_none"))
    with pytest.raises(NotFound):
        gone = await world.project(name="gone", deleted_at=1.0)
        await projects.ask(OpenProject(project_id=gone.id))


async def test_at_its_start_it_opens_the_projects_in_which_something_lives(world: World) -> None:
    alive, resting = await world.project(name="alive"), await world.project(name="resting")
    await world.session(alive, status="idle")
    await world.session(resting, status="completed")
    assert list(await begin(world).ask(WhichChildren())) == [alive.id]


async def test_a_project_whose_actor_fails_is_there_again(world: World) -> None:
    projects, project = begin(world), await world.project()
    ref = world.system.ref(await projects.ask(OpenProject(project_id=project.id)))
    first = ref.incarnation
    await ref.kill()
    await world.until(ref.is_alive, seconds=0.1)
    assert ref.incarnation > first


async def test_the_actor_of_a_project_without_any_use_ends_and_the_next_request_starts_it(
    world: World,
) -> None:
    projects, project = begin(world), await world.project()
    name = await projects.ask(OpenProject(project_id=project.id))
    first = world.system.ref(name).incarnation
    await world.settle(UNUSED_SECONDS - 1)
    await projects.ask(OpenProject(project_id=project.id))
    await world.settle(2.0)
    assert world.system.ref(name).incarnation == first, "it may be sent something now"
    await world.until(lambda: world.system.lookup(name) is None, seconds=60.0)
    assert await projects.ask(WhichChildren()) == {}
    assert await projects.ask(OpenProject(project_id=project.id)) == name
    assert await world.system.ref(name).ask(GetProblem()) is None
    await world.until(lambda: world.system.lookup(name) is None, seconds=60.0)


async def test_a_project_in_which_something_lives_has_a_use_for_its_actor(world: World) -> None:
    alive, resting = await world.project(name="alive"), await world.project(name="resting")
    await world.session(alive, status="idle")
    projects = begin(world)
    for project, unused in ((alive, False), (resting, True)):
        ref = world.system.ref(await projects.ask(OpenProject(project_id=project.id)))
        assert await ref.ask(GetUnused()) is unused


async def test_a_project_in_which_sessions_live_is_not_deleted(world: World) -> None:
    projects = begin(world)
    project = await create(projects)
    await world.session(project, status="idle")
    with pytest.raises(Conflict, match="session"):
        await projects.ask(DeleteProject(project_id=project.id))
    assert world.folders.project(project.id).is_dir()
    assert await world.reader.project(project.id) == project


async def test_a_project_that_is_deleted_is_gone_with_its_actor_and_its_folder(
    world: World,
) -> None:
    projects = begin(world)
    project = await create(projects)
    name = await projects.ask(OpenProject(project_id=project.id))
    await projects.ask(DeleteProject(project_id=project.id))
    assert world.system.lookup(name) is None
    assert not world.folders.project(project.id).exists()
    with pytest.raises(NotFound):
        await projects.ask(OpenProject(project_id=project.id))
    assert (await create(projects)).id != project.id, "its name is free"


@pytest.fixture
def removal(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are removed once this is set: how long that takes is up to agents."""
    may, remove = threading.Event(), world.folders.remove_project

    def remove_then(project_id: str) -> None:
        assert may.wait(20)
        remove(project_id)

    monkeypatch.setattr(world.folders, "remove_project", remove_then)
    yield may
    may.set()


async def test_while_the_files_of_a_project_are_removed_all_others_are_served(
    world: World, removal: threading.Event
) -> None:
    projects = begin(world)
    large, other = await create(projects, "large"), await create(projects, "other")
    deleted = asyncio.ensure_future(projects.ask(DeleteProject(project_id=large.id)))
    await world.until(lambda: world.system.lookup(f"projects/{large.id}"), seconds=1.0)
    await projects.ask(OpenProject(project_id=other.id))
    again = await create(projects, "another")
    await projects.ask(OpenProject(project_id=again.id))
    with pytest.raises(NotFound):
        while True:
            await projects.ask(OpenProject(project_id=large.id))
    assert (await create(projects, "large")).id != large.id, "its name is free"
    assert not deleted.done()
    removal.set()
    await deleted
    assert not world.folders.project(large.id).exists()


async def test_what_an_earlier_server_did_not_clone_to_its_end_holds_up_no_start(
    world: World, removal: threading.Event
) -> None:
    alive = await world.project(name="alive")
    await world.session(alive, status="idle")
    cut_off = await world.project(name="cut off", repository=ProjectRepository(url="https://x/y"))
    Repositories(world.folders.repositories, world.context.config.repositories).begin(cut_off.id)
    projects = begin(world)
    assert list(await projects.ask(WhichChildren())) == [alive.id]
    with pytest.raises(NotFound):
        await projects.ask(OpenProject(project_id=cut_off.id))
    assert not removal.is_set()


class SlowToClose(Actor):
    """Stands for the snapshots of a project, which take their time at its end."""

    def __init__(self, closing: list[Deferred]) -> None:
        super().__init__()
        self._closing = closing

    @handles(CloseSnapshots)
    def _close(self, _: CloseSnapshots) -> None:
        self._closing.append(self.defer())


async def test_while_a_project_is_closed_others_are_served_and_both_who_delete_it_are_answered(
    world: World,
) -> None:
    projects = begin(world)
    project = await create(projects)
    closing: list[Deferred] = []
    world.system.spawn(SlowToClose, closing, name=SNAPSHOTS)
    deleted = [
        asyncio.ensure_future(projects.ask(DeleteProject(project_id=project.id))) for _ in "ab"
    ]
    other = await create(projects, "other")
    await projects.ask(OpenProject(project_id=other.id))
    with pytest.raises(Conflict, match="is being deleted"):
        await projects.ask(HoldProject(project_id=project.id))
    assert not any(each.done() for each in deleted)
    await world.until(lambda: bool(closing), seconds=1.0)
    closing[0].set(None)
    assert await asyncio.gather(*deleted) == [None, None]
    with pytest.raises(NotFound):
        await projects.ask(DeleteProject(project_id=project.id))


@pytest.mark.parametrize("message", [DeleteProject, HoldProject])
async def test_a_project_that_could_not_be_closed_is_worked_in_on(
    world: World, message: type[DeleteProject | HoldProject]
) -> None:
    world.system.spawn(
        CallersActor, world.store, world.reader, world.config.callers, name="callers"
    )
    world.system.spawn(TreesActor, world.context, name="trees")
    projects = begin(world)
    project = await create(projects)
    closing: list[Deferred] = []
    world.system.spawn(SlowToClose, closing, name=SNAPSHOTS)
    asked = asyncio.ensure_future(projects.ask(message(project_id=project.id)))
    await world.until(lambda: bool(closing), seconds=1.0)
    closing[0].set_error(RuntimeFailure("the disk does not answer"))
    with pytest.raises(RuntimeFailure, match="does not answer"):
        await asked
    ref = world.system.ref(await projects.ask(OpenProject(project_id=project.id)))
    assert (await ref.ask(SpawnSession(principal="alice", prompt="hello"))).session_id


class HomesOfALostMachine:
    """All projects are here, and those of a machine that is gone."""

    def __init__(self, lost: list[str]) -> None:
        self.lost = lost

    async def projects_here(self) -> frozenset[str]:
        return frozenset()

    async def elsewhere(self, _: str) -> bool:
        return False

    async def take_over(self) -> list[str]:
        return self.lost

    async def place_here(self, _: Project) -> None:
        pass


async def test_a_take_over_that_the_database_stops_is_tried_again_and_holds_up_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await world.project()
    homes: Any = HomesOfALostMachine([project.id])
    world.context = dataclasses.replace(world.context, homes=homes)
    world.record("trees")
    projects = begin(world)
    with monkeypatch.context() as outage:

        async def read(_: str) -> None:
            raise StorageUnavailable("the database is away")

        outage.setattr(world.context.reader, "project", read)
        projects.tell(TakeOverProjects())
        with pytest.raises(StorageUnavailable):
            await projects.ask(OpenProject(project_id=project.id))
    assert list(await projects.ask(WhichChildren())) == []
    await world.until(lambda: world.system.lookup(f"projects/{project.id}"), seconds=0.5)


async def test_a_project_comes_after_those_of_a_node_whose_clock_is_ahead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, homes = time.time_ns(), cast("Any", HomesOfALostMachine([]))
    world.context = dataclasses.replace(world.context, homes=homes)
    projects = begin(world)
    await projects.ask(WhichChildren())
    with monkeypatch.context() as ahead:
        ahead.setattr(ids, "_last", 0)
        ahead.setattr(time, "time_ns", lambda: now + 3_600 * 10**9)
        other = await world.project(name="of a node that is ahead", id=ids.new_id(ids.PROJECT))
    monkeypatch.setattr(ids, "_last", 0)
    assert (await create(projects)).id > other.id


async def test_a_message_for_somebody_else_is_refused(world: World) -> None:
    with pytest.raises(UnhandledMessage, match="GetContainer"):
        await begin(world).ask(GetContainer())
