"""The owner of the snapshots of all workspaces."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.actors.snapshot_requests import (
    SNAPSHOTS,
    AskHistory,
    CloseSnapshots,
    TakeSnapshot,
)
from oubliette.actors.snapshots import SnapshotsActor
from oubliette.config.schema import ClusterConfig, Config, SnapshotsConfig
from oubliette.errors import LimitExceeded, NotFound
from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.runtime.snapshots.history_records import DiffAnswer, DiffQuestion
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.kit import Ref
    from oubliette.records import Project, Session
    from tests.unit.actors.fakes import World

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


def owner(world: World) -> Ref:
    git = GitProgram.find()
    assert git is not None
    return world.system.spawn(SnapshotsActor, world.context, git.path, name=SNAPSHOTS)


def take(project: Project, turn: int) -> TakeSnapshot:
    label = SnapshotLabel(session_id="ses_1", turn=turn, when=1_700_000_000.0)
    return TakeSnapshot(
        project_id=project.id, workspace_id=project.default_workspace_id, label=label
    )


def folder(world: World, project: Project) -> Path:
    return world.folders.workspace(project.id, project.default_workspace_id)


async def test_requests_for_one_workspace_are_served_in_their_order(world: World) -> None:
    project, snapshots = await world.project(), owner(world)
    (folder(world, project) / "file").write_text("text")
    taken = await asyncio.gather(*(snapshots.ask(take(project, n)) for n in (1, 2, 3)))
    assert [each.changed for each in taken] == [True, False, False]
    assert [each.ref for each in taken] == [f"refs/oubliette/ses_1/{n}" for n in (1, 2, 3)]


async def test_a_project_is_closed_when_nothing_of_it_is_under_way(world: World) -> None:
    project, snapshots = await world.project(), owner(world)
    (folder(world, project) / "file").write_text("text")
    running = asyncio.ensure_future(snapshots.ask(take(project, 1)))
    waiting = asyncio.ensure_future(snapshots.ask(take(project, 2)))
    await asyncio.sleep(0)
    await snapshots.ask(CloseSnapshots(project_id=project.id))
    assert running.done()
    assert (await running).changed
    with pytest.raises(NotFound, match="closed"):
        await waiting
    await asyncio.to_thread(world.folders.remove_project, project.id)
    assert not (world.folders.snapshots / project.id).exists()


async def test_projects_of_one_principal_leave_room_for_those_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    end = asyncio.Event()

    async def run(_: WorkspaceJobs, job: bytes) -> list[bytes]:
        begun.append(json.loads(job)["repository"].split("/")[-2])
        await end.wait()
        return [b'{"status": "failed"}', b'{"code": 0, "errors": ""}']

    monkeypatch.setattr(WorkspaceJobs, "_run", run)
    snapshots, asked = owner(world), []

    async def want(project: Project, session: Session | None) -> None:
        workspace = await world.workspace(project)
        (world.folders.workspace(project.id, workspace.id) / "file").touch()
        label = SnapshotLabel(session_id=session.id if session else "none", turn=1, when=1.0)
        message = TakeSnapshot(project_id=project.id, workspace_id=workspace.id, label=label)
        asked.append(asyncio.ensure_future(snapshots.ask(message, timeout=100)))

    # Who made the projects does not matter, where sessions are of somebody: one admin may make all
    projects = [await world.project(owner="admin", name=f"p{n}") for n in range(5)]
    mallorys, hers, unused = projects[:3], projects[3], projects[4]
    own = await world.session(mallorys[0], principal="mallory")
    for project in mallorys:
        # Its agents have keys, and start sessions of principals that are new each time
        more = await world.session(
            project, principal=f"session:{project.id}", root_session_id=own.id
        )
        for session in (own, more):
            await want(project, session)
    await world.until(lambda: len(begun) == 4)
    await want(hers, await world.session(hers, principal="alice"))
    await want(unused, None)
    await world.until(lambda: len(begun) == 6)
    assert set(begun[4:]) == {hers.id, unused.id}
    assert max(begun.count(project.id) for project in mallorys) <= 2
    end.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert len(begun) == 8


async def test_a_workspace_that_cannot_be_stored_is_refused_with_the_reason(world: World) -> None:
    world.configure(Config(snapshots=SnapshotsConfig(max_entries=2)))
    project, snapshots = await world.project(), owner(world)
    for name in "abc":
        (folder(world, project) / name).touch()
    with pytest.raises(LimitExceeded, match="more than 2 entries"):
        await snapshots.ask(take(project, 1))


async def test_files_of_another_node_are_announced_to_the_first_who_waits_for_an_answer(
    world: World, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    world.configure(Config(cluster=ClusterConfig(snapshots=str(shared))))
    # That there are other nodes is all that it wants to know.
    world.context = dataclasses.replace(world.context, homes=cast("Any", object()))
    project, snapshots = await world.project(), owner(world)
    (folder(world, project) / "file").write_text("text")
    await snapshots.ask(take(project, 1))
    await snapshots.ask(CloseSnapshots(project_id=project.id))  # which waits for the copy
    await asyncio.to_thread(world.folders.remove_project, project.id)
    await asyncio.to_thread(world.folders.create_project, project)
    workspace_id = project.default_workspace_id
    await asyncio.to_thread(world.folders.create_workspace, project, workspace_id)
    snapshots.tell(take(project, 2))
    third = await snapshots.ask(take(project, 3))
    assert third.brought is not None
    assert third.brought.written >= 1
    assert (folder(world, project) / "file").read_text() == "text"
    assert (await snapshots.ask(take(project, 4))).brought is None


async def test_a_question_is_answered_after_the_snapshots_that_were_requested_before(
    world: World,
) -> None:
    project, snapshots = await world.project(), owner(world)
    (folder(world, project) / "file").write_text("text\n")
    snapshots.tell(take(project, 1))
    question = DiffQuestion(session_id="ses_1")
    answer = await snapshots.ask(
        AskHistory(
            project_id=project.id, workspace_id=project.default_workspace_id, question=question
        )
    )
    assert isinstance(answer, DiffAnswer)
    assert [each.path for each in answer.changes] == ["file"]
