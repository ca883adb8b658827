"""A server that is killed while it clones leaves nothing half done."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
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


@pytest.fixture
async def server(zygote: Zygote) -> AsyncIterator[ServerProcess]:
    settings = {"repositories.protocols": "http"}
    async with ServerProcess(zygote=zygote, settings=settings) as process:
        yield process
        print(process.log()[-50_000:] if process.log_file.exists() else "")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source"))
        yield started


async def clone(caller: Here, host: GitHost) -> dict:
    return await caller.call("project_create", name="shop", repository={"url": host.url("shop")})


def left(server: ServerProcess, known: str) -> list[str]:
    """Names of projects with files, but for the one that is known."""
    tops = ("projects", "homes", "repositories")
    return [
        each.name
        for top in tops
        for each in (server.home / top).iterdir()
        if each.name != known and each.is_dir()
    ]


@pytest.mark.parametrize(
    "point", ["clone.begun@1", "project.cloned@1", "workspace.cloned@1", "workspace.placed@1"]
)
async def test_a_project_whose_clone_was_cut_off_is_removed_by_the_next_server(
    server, host, point
) -> None:
    await server.start()
    async with Here(server) as caller:
        name, _, at = point.partition("@")
        await server.arm(f"{name}=kill@{at}")
        with contextlib.suppress(*BROKEN):
            await clone(caller, host)
        assert await server.ended() == -9
        assert left(server, caller.project_id)
        await server.start()
        await until(lambda: not left(server, caller.project_id))
        listed = await caller.call("project_list")
        assert [each["id"] for each in listed["projects"]] == [caller.project_id]
        made = await clone(caller, host)
        assert made["repository"]["state"] == "ready"


async def read(server: ServerProcess, tool: str, argument: str) -> Any:
    """What a command reads of a home whose server does not run."""
    words = ["call", tool, argument, "--home", str(server.home), "-o", "json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oubliette", *words, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return json.loads(out)


async def test_nothing_is_left_where_the_server_is_killed_while_the_host_sends(
    server, host
) -> None:
    await server.start()
    host.may_send.clear()
    async with Here(server) as caller:
        cloning = asyncio.create_task(clone(caller, host))
        assert await asyncio.to_thread(host.waits.wait, 20)
        await server.kill()
        with contextlib.suppress(*BROKEN):
            await cloning
        listed = await read(server, "project_list", "name_contains=shop")
        shown = await read(server, "project_get", f"project_id={listed['projects'][0]['id']}")
        assert shown["repository"]["state"] == "cloning"
        host.may_send.set()
        await server.start()
        await until(lambda: not left(server, caller.project_id))
        assert (await clone(caller, host))["repository"]["state"] == "ready"


async def test_a_server_that_stops_ends_its_clones(server, host) -> None:
    await server.start()
    host.may_send.clear()
    async with Here(server) as caller:
        cloning = asyncio.create_task(clone(caller, host))
        assert await asyncio.to_thread(host.waits.wait, 20)
        assert await server.stop() == 0
        with pytest.raises(ToolFailed, match="the server is stopping"):
            await cloning
        await server.start()
        await until(lambda: not left(server, caller.project_id))


async def test_a_workspace_that_was_cut_off_is_no_workspace(server, host) -> None:
    await server.start()
    async with Here(server) as caller:
        project = await clone(caller, host)
        await server.arm("workspace.cloned=kill@1")
        with contextlib.suppress(*BROKEN):
            await caller.call(
                "session_spawn", project_id=project["id"], prompt="say hi", create_workspace=True
            )
        assert await server.ended() == -9
        await server.start()
        found = await caller.call("workspace_list", project_id=project["id"])
        assert len(found["workspaces"]) == 1
        folder = server.home / "repositories" / project["id"]
        await caller.call(
            "session_spawn", project_id=project["id"], prompt="say hi", create_workspace=True
        )
        assert [each.name for each in folder.iterdir()] == ["repository.git"]
