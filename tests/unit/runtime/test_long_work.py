"""Work that takes long: one tenant's leaves room for that of others."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors import snapshots
from oubliette.actors.project import cloning, disk_quota
from oubliette.config.schema import Config
from oubliette.runtime.files.disk_usage import DiskUsage
from oubliette.runtime.long_work import FairSlots, in_own_thread
from oubliette.runtime.repositories.workspace_clone import WorkspaceClone
from oubliette.runtime.snapshots.snapshot_records import SnapshotLimits
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


class Work:
    """Work of several owners that goes on until it is ended."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._end = asyncio.Event()

    async def take(self, owner: str) -> None:
        self.begun.append(owner)
        await self._end.wait()

    async def ends(self) -> None:
        self._end.set()
        await asyncio.sleep(0)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_no_owner_takes_all_places_and_its_own_come_free_in_turn() -> None:
    slots, work = FairSlots(3, 2), Work()

    async def hold(owner: str) -> None:
        async with slots.of(owner):
            await work.take(owner)

    async with asyncio.TaskGroup() as group:
        for owner in ("mallory", "mallory", "mallory", "alice", "bob"):
            group.create_task(hold(owner))
        await turns()
        assert work.begun == ["mallory", "mallory", "alice"]
        await work.ends()
    assert sorted(work.begun) == sorted(["mallory"] * 3 + ["alice", "bob"])


async def test_workspaces_of_one_project_leave_room_for_those_of_others() -> None:
    most = snapshots.AT_ONCE, snapshots.OF_PRINCIPAL, snapshots.OF_PROJECT
    jobs, work = WorkspaceJobs(*most), Work()

    async def run(job: bytes) -> list[bytes]:
        await work.take("mallory" if b"/mallory/" in job else "alice")
        return [b'{"status": "taken"}', b'{"code": 0, "errors": ""}']

    jobs._run = run  # type: ignore[method-assign]
    git: Any = SimpleNamespace(path="git", environment=lambda _: {})

    async def do(project: str, number: int) -> None:
        repository = Path(f"/snapshots/{project}/{number}.git")
        await jobs.do(Path("/w"), {"do": "take"}, repository, git, SnapshotLimits())

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(do("mallory", number))
        await turns()
        group.create_task(do("alice", 1))
        await turns()
        assert work.begun == ["mallory", "mallory", "alice"]
        await work.ends()


async def test_clones_of_one_principal_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work()

    class Stopped(Exception):
        pass

    class Repositories:
        def __init__(self, *_: Any) -> None:
            pass

        async def source(self, record: Any) -> Any:
            await work.take(record.owner)
            raise Stopped

    monkeypatch.setattr(cloning, "Repositories", Repositories)
    context: Any = SimpleNamespace(
        folders=SimpleNamespace(repositories=None), config=SimpleNamespace(repositories=None)
    )
    clones = cloning.RepositoryClones(SimpleNamespace(), context)  # type: ignore[arg-type]

    async def clone(owner: str) -> None:
        record = SimpleNamespace(owner=owner, fetch_lfs=False)
        project: Any = SimpleNamespace(id="proj_1", repository=record)
        message: Any = SimpleNamespace(principal=owner)
        running = cloning.RunningClone(project=project, message=message, answers=[])
        with pytest.raises(Stopped):
            await clones._cloned(running)

    async with asyncio.TaskGroup() as group:
        for owner in ("mallory",) * 5 + ("alice",):
            group.create_task(clone(owner))
        await turns()
        assert work.begun == ["mallory", "mallory", "alice"]
        await work.ends()


def measurement(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object]) -> Any:
    """Return the measurement of a project that takes for ever."""
    used = DiskUsage(bytes=1, entries=1, complete=True)
    monkeypatch.setattr(disk_quota, "measure", lambda *_, **__: (wait(), used)[1])
    context: Any = SimpleNamespace(
        reader=SimpleNamespace(live_sessions=none, containers=none),
        folders=SimpleNamespace(project=Path, session_homes=Path, home=Path("/")),
        config=Config(),
    )
    ignored: Any = lambda *_: None  # noqa: E731
    monitor = disk_quota.DiskQuotaMonitor(context, "proj_1", ignored, ignored, list)
    return lambda: monitor._measure(())


def copy(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object]) -> Any:
    """Return the making of a workspace whose repository takes for ever to be copied."""
    made = WorkspaceClone(
        SimpleNamespace(folder=Path("/repository")),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        branch="one",
        start="1" * 40,
    )
    monkeypatch.setattr(made, "_lay_out", lambda: None)
    monkeypatch.setattr(made, "_check_out", none)
    monkeypatch.setattr(made, "_copy_objects", wait)
    return made._make


async def none(*_: object) -> tuple[()]:
    return ()


@pytest.mark.parametrize("kind", [measurement, copy])
async def test_long_work_leaves_the_threads_of_others_free(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Any]
) -> None:
    over = threading.Event()
    begin = kind(monkeypatch, over.wait)
    endless = [asyncio.create_task(begin()) for _ in range(40)]
    await turns()
    try:
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: "done") == "done"
    finally:
        over.set()
        await asyncio.gather(*endless)


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
async def test_an_error_of_long_work_is_its_waiters(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await in_own_thread(fail)


async def test_a_result_that_is_not_wanted_any_more_is_dropped() -> None:
    begun, over, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait()
        ended.set()

    waiter = asyncio.create_task(in_own_thread(work))
    assert await asyncio.to_thread(begun.wait, 10)
    waiter.cancel()
    await asyncio.wait([waiter])
    over.set()
    assert await asyncio.to_thread(ended.wait, 10)
    await turns()
