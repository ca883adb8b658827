"""A server that is killed while it merges or pushes leaves nothing half done."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.faults.here import Here
from tests.faults.history import BROKEN
from tests.git_hosts import GitHost, checkout, git

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from oubliette.testing.fork_server import Zygote

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


@pytest.fixture
async def server(zygote: Zygote) -> AsyncIterator[ServerProcess]:
    settings = {"repositories.protocols": "http", "snapshots.mode": "on"}
    async with ServerProcess(zygote=zygote, settings=settings) as process:
        yield process
        print(process.log()[-50_000:] if process.log_file.exists() else "")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source"))
        started.receiving("shop")
        yield started


async def worked(caller: Here, host: GitHost, then: str = "true") -> tuple[dict[str, Any], str]:
    """A project, and a session that has changed a file in it."""
    project = await caller.call(
        "project_create", name="shop", repository={"url": host.url("shop"), "push": True}
    )
    answer = await caller.call(
        "session_spawn",
        project_id=project["id"],
        prompt=f"exec echo 1 > one && {then}",
        new_session=True,
    )
    await caller.turns_done(answer["session_id"])
    return project, answer["session_id"]


@pytest.mark.parametrize("point", ["merge.computed", "merge.stored", "merge.done"])
async def test_a_branch_has_all_of_a_merge_or_nothing(server, host, point) -> None:
    await server.start()
    async with Here(server) as caller:
        project, session_id = await worked(caller, host)
        folder = server.home / "repositories" / project["id"]
        bare = folder / "repository.git"
        await server.arm(f"{point}=kill@1")
        with contextlib.suppress(*BROKEN):
            await caller.call("session_merge", session_id=session_id, into="work")
        assert await server.ended() == -9
        heads = git(bare, "for-each-ref", "refs/heads").splitlines()
        assert len(heads) == (1 if point == "merge.done" else 0)
        git(bare, "fsck", "--strict")
        await server.start()
        again = await caller.call("session_merge", session_id=session_id, into="work")
        assert (again["merged"], again["up_to_date"]) == (
            (False, True) if point == "merge.done" else (True, False)
        )
        assert git(bare, "show", "work:one") == "1\n"
        assert [each.name for each in folder.iterdir()] == ["repository.git"]
        git(bare, "fsck", "--strict")


@pytest.mark.parametrize("point", ["agent_commits.fetched", "agent_commits.stored"])
async def test_commits_of_an_agent_are_all_there_or_not_at_all(server, host, point) -> None:
    await server.start()
    async with Here(server) as caller:
        project, session_id = await worked(
            caller, host, "git add one && git -c user.name=Grace -c user.email=g@x commit -qm one"
        )
        folder = server.home / "repositories" / project["id"]
        bare = folder / "repository.git"
        asked = {"session_id": session_id, "into": "work", "commits": "agent"}
        await server.arm(f"{point}=kill@1")
        with contextlib.suppress(*BROKEN):
            await caller.call("session_merge", **asked)
        assert await server.ended() == -9
        git(bare, "fsck", "--strict")
        assert git(bare, "for-each-ref", "refs/heads", "refs/oubliette/agent") == ""
        await server.start()
        assert (await caller.call("session_merge", **asked))["merged"]
        assert git(bare, "log", "-1", "--format=%an %s", "work") == "Grace one\n"
        assert [each.name for each in folder.iterdir()] == ["repository.git"]
        git(bare, "fsck", "--strict")


@pytest.mark.parametrize("point", ["push.begun", "push.sent"])
async def test_a_push_that_was_cut_off_can_be_repeated(server, host, point) -> None:
    await server.start()
    there = host.folder / "shop.git"
    async with Here(server) as caller:
        _, session_id = await worked(caller, host)
        await server.arm(f"{point}=kill@1")
        with contextlib.suppress(*BROKEN):
            await caller.call("session_push", session_id=session_id, branch="work")
        assert await server.ended() == -9
        assert ("work" in git(there, "branch")) == (point == "push.sent")
        await server.start()
        again = await caller.call("session_push", session_id=session_id, branch="work")
        assert (again["pushed"], again["merged"]) == (True, False)
        assert git(there, "rev-parse", "work").strip() == again["commit"]
        done = await caller.call("session_push", session_id=session_id, branch="work")
        assert done["up_to_date"]
