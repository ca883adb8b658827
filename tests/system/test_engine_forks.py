"""Forks of one session in containers, from a repository's commit to what each made of it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller
from tests.git_hosts import GitHost, checkout, git
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from oubliette.testing.fork_server import Zygote

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
RUNTIMES = [
    pytest.param("process", marks=pytest.mark.whole),  # the core has its steps one by one
    *(pytest.param(each, marks=pytest.mark.requires(each)) for each in ("docker", "podman")),
]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source", {"shop.py": "price = 1\n"}))
        yield started


@pytest.fixture(params=RUNTIMES)
async def server(
    request: pytest.FixtureRequest, zygote: Zygote, anyio_backend: str
) -> AsyncIterator[ServerProcess]:
    runtime = request.param
    settings: dict[str, Any] = {
        "containers.runtime": runtime,
        "repositories.protocols": "http",
        "snapshots.mode": "on",
        "agents.default": "scripted",
    }
    if runtime != "process":
        settings |= {
            "containers.image": ensure_image(runtime),
            "containers.network": "none",
        }
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        try:
            yield server
        finally:
            label = f"dev.oubliette.instance={server.instance()}"
            await server.kill()
            if runtime != "process":
                api = Engine(runtime).connect()
                for container in api.containers(all=True, filters={"label": [label]}):
                    with contextlib.suppress(Exception):
                        api.remove_container(container["Id"], force=True, v=True)
                api.close()


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[HttpCaller]:
    async with HttpCaller(server.url, server.token("admin"), caller_id="admin") as admin:
        yield admin


async def answer(caller: HttpCaller, session_id: str) -> str:
    """Return the answer of a session's only turn, once it has ended."""
    since = -1
    async with asyncio.timeout(120):
        while True:
            page = await caller.call(
                "session_events", session_id=session_id, since_index=since, wait_seconds=30
            )
            for event in page["events"]:
                if event["type"] == "completion":
                    assert event["status"] == "completed", page
                    return str(event["final_text"])
            since = page["last_index"]


async def test_three_forks_work_and_are_compared_and_the_best_is_merged(
    server, caller, host
) -> None:
    project = await caller.call("project_create", name="shop", repository={"url": host.url("shop")})
    first = await caller.call(
        "session_spawn",
        project_id=project["id"],
        prompt="exec echo 'price = 2' > shop.py && git commit -qam dearer && echo new > new"
        "\nremember price 2",
    )
    await answer(caller, first["session_id"])
    done = await caller.call(
        "session_fork",
        session_id=first["session_id"],
        at_turn=1,
        count=3,
        prompt="recall price\nexec echo $OUBLIETTE_SESSION_ID >> new && echo 3 > same"
        " && git fsck && git log --format=%s && git branch --show-current",
    )
    assert done["started"] == 3, done
    for each in done["sessions"]:
        said = await answer(caller, each["session_id"])
        branch = f"oubliette/{each['workspace_id']}"
        assert '"exit_code": 0' in said, said
        assert f"dearer\\nthe first one\\n{branch}" in said
        assert each["conversation"] == "native"
    found = await caller.call(
        "session_compare",
        project_id=project["id"],
        session_ids=[each["session_id"] for each in done["sessions"]],
    )
    assert {each["path"]: each["outcomes"] for each in found["files"]} == {
        "new": [1, 2, 3],
        "same": [1, 1, 1],
    }
    best = done["sessions"][1]["session_id"]
    merged = await caller.call("session_merge", session_id=best, into="main")
    assert (merged["merged"], merged["conflicts"]) == (True, [])
    folder = server.home / "repositories" / project["id"] / "repository.git"
    assert git(folder, "show", "main:new") == f"new\n{best}\n"
    assert git(folder, "show", "main:shop.py") == "price = 2\n"
