"""A server that is killed while it forks leaves no half-made workspace, and may be asked again."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.faults.here import Here, until
from tests.faults.history import BROKEN
from tests.git_hosts import GitHost, checkout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from oubliette.testing.fork_server import Zygote

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
POINTS = ["fork.filled@1", "fork.placed@1", "project.session_recorded@1"]


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
        yield started


async def forked(caller: Here, session_id: str) -> dict[str, Any]:
    return await caller.call(
        "session_fork", session_id=session_id, prompt="exec ls", count=1, idempotency_key="once"
    )


@pytest.mark.parametrize("cloned", [False, True], ids=["plain", "cloned"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_fork_that_was_cut_off_leaves_nothing_and_is_repeated(
    server, host, point, cloned
) -> None:
    await server.start()
    async with Here(server) as caller:
        if cloned:
            made = await caller.call(
                "project_create", name="shop", repository={"url": host.url("shop")}
            )
            caller.project_id = made["id"]
        session_id = await caller.spawn("exec echo 1 > one")
        await caller.turns_done(session_id)
        name, _, at = point.partition("@")
        await server.arm(f"{name}=kill@{at}")
        with contextlib.suppress(*BROKEN):
            await forked(caller, session_id)
        assert await server.ended() == -9
        await server.start()

        found = await caller.call("workspace_list", project_id=caller.project_id)
        known = {each["id"] for each in found["workspaces"]}
        assert len(known) == (2 if name == "project.session_recorded" else 1)
        folder = server.home / "projects" / caller.project_id / "workspaces"
        new = server.home / "repositories" / caller.project_id
        await until(lambda: {each.name for each in folder.iterdir()} == known)
        await until(lambda: not list(new.glob(".*")))

        done = await forked(caller, session_id)
        (session,) = done["sessions"]
        assert session["error"] is None
        await caller.turns_done(session["session_id"])
        assert (folder / session["workspace_id"] / "one").read_text() == "1\n"
        found = await caller.call("workspace_list", project_id=caller.project_id)
        assert {each["id"] for each in found["workspaces"]} == known | {session["workspace_id"]}
        assert len(found["workspaces"]) == 2
