"""Commits of an agent out of containers of each engine, also where the image has no git."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.git_hosts import GitHost, git
from tests.system.test_engine_forks import RUNTIMES, answer, caller, host, server  # noqa: F401

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess
    from tests.callers import HttpCaller

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


async def test_commits_come_out_of_the_container(
    server: ServerProcess,  # noqa: F811
    caller: HttpCaller,  # noqa: F811
    host: GitHost,  # noqa: F811
) -> None:
    project = await caller.call("project_create", name="shop", repository={"url": host.url("shop")})
    work = (
        "exec git config user.name Grace && git config user.email grace@example.invalid"
        " && echo 'price = 2' > shop.py && git commit -qam dearer && echo new > new"
    )
    spawned = await caller.call("session_spawn", project_id=project["id"], prompt=work)
    assert '"exit_code": 0' in await answer(caller, spawned["session_id"])
    merged = await caller.call(
        "session_merge", session_id=spawned["session_id"], into="work", commits="agent"
    )
    assert (merged["merged"], merged["commits"]) == (True, 2)
    bare = server.home / "repositories" / project["id"] / "repository.git"
    log = git(bare, "log", "--format=%an %s", "work").splitlines()
    assert log[1:] == ["Grace dearer", "Ada the first one"]
    assert git(bare, "show", "work:new") == "new\n"
    git(bare, "fsck", "--strict")
