"""The processes that read and write workspaces, and the one that forks them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from oubliette.errors import DeadlineExceeded, RuntimeFailure
from oubliette.runtime.snapshots.workspace.tree_reader import LARGEST
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs
from tests.unit.runtime.snapshots.conftest import Shadow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


def running() -> list[psutil.Process]:
    """Processes that this one has started, and those that come from them."""
    return [
        each
        for each in psutil.Process().children(recursive=True)
        if each.is_running() and each.status() != psutil.STATUS_ZOMBIE
    ]


def endless(shadow: Shadow) -> None:
    """Fill a workspace so that reading it takes minutes."""
    folder = shadow.workspace / "large"
    folder.mkdir()
    for number in range(100):
        path = folder / str(number)
        path.touch()
        os.truncate(path, LARGEST)


async def job_begun(before: int) -> list[psutil.Process]:
    """The processes of a job, once git is among them."""
    with anyio.fail_after(20):
        while True:
            found = running()
            if len(found) > before and any(each.name() == "git" for each in found):
                return found
            await anyio.sleep(0.02)


async def test_one_process_serves_all_workspaces_and_ends_with_its_owner(
    shadow_of: Callable[..., Shadow], jobs: WorkspaceJobs
) -> None:
    before = {each.pid for each in running()}
    for name in ("one", "two"):
        shadow = shadow_of(name)
        (shadow.workspace / "file").write_text(name)
        await shadow.turn(1)
    (started,) = [each for each in running() if each.pid not in before]
    await jobs.aclose()
    assert not started.is_running()


async def test_a_killed_process_is_replaced(shadow_of: Callable[..., Shadow]) -> None:
    shadow = shadow_of()
    before = {each.pid for each in running()}
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    (started,) = [each for each in running() if each.pid not in before]
    started.send_signal(signal.SIGKILL)
    started.wait(10)
    (shadow.workspace / "file").write_text("two")
    assert (await shadow.turn(2)).changed


async def test_a_job_that_is_cancelled_ends_with_all_that_it_has_started(
    shadow_of: Callable[..., Shadow],
) -> None:
    shadow = shadow_of(max_file_bytes=1000)
    (shadow.workspace / "file").write_text("one")
    await shadow.turn(1)
    kept = running()
    endless(shadow)
    task = asyncio.create_task(shadow.turn(2))
    begun = [each for each in await job_begun(len(kept)) if each not in kept]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = (await asyncio.to_thread(psutil.wait_procs, begun, 10))[1]
    assert not left
    shutil.rmtree(shadow.workspace / "large")
    (shadow.workspace / "file").write_text("two")
    assert (await shadow.turn(3)).changed


async def test_a_job_that_takes_too_long_does_not_delay_the_next_one(
    shadow_of: Callable[..., Shadow],
) -> None:
    slow = shadow_of("slow", max_file_bytes=1000, seconds=0.5)
    endless(slow)
    with pytest.raises(DeadlineExceeded, match=r"snapshots\.seconds"):
        await slow.turn(1)
    quick = shadow_of("quick")
    (quick.workspace / "file").write_text("one")
    assert (await quick.turn(1)).changed


async def test_a_job_that_dies_is_an_error_and_not_the_end_of_others(
    shadow_of: Callable[..., Shadow],
) -> None:
    shadow = shadow_of(max_file_bytes=1000)
    kept = running()
    endless(shadow)
    task = asyncio.create_task(shadow.turn(1))
    (git,) = [each for each in await job_begun(len(kept) + 1) if each.name() == "git"]
    job = git.parent()
    assert job is not None
    job.send_signal(signal.SIGKILL)
    with pytest.raises(RuntimeFailure, match="reader failed"):
        await task
    shutil.rmtree(shadow.workspace / "large")
    (shadow.workspace / "file").write_text("two")
    taken = await shadow.turn(2)
    assert taken.changed, taken


async def test_an_owner_that_ends_ends_the_jobs_under_way(tmp_path: Path, git: GitProgram) -> None:
    jobs = WorkspaceJobs()
    shadow = Shadow(tmp_path / "one", git, jobs, max_file_bytes=1000)
    kept = running()
    endless(shadow)
    task = asyncio.create_task(shadow.turn(1))
    begun = [each for each in await job_begun(len(kept) + 1) if each not in kept]
    await jobs.aclose()
    with pytest.raises(RuntimeFailure):
        await task
    assert not (await asyncio.to_thread(psutil.wait_procs, begun, 10))[1]
