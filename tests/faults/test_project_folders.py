"""A project is there with its folders, or it is not there at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.callers import HttpCaller, ToolFailed
from tests.faults.history import BROKEN

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

GIT = """#!/bin/sh
case "$(test -e {home}/refuse && echo " $* ")" in
*" {verb} "*) echo "fatal: it is so" >&2; exit 128;;
esac
exec /usr/bin/env PATH="$OTHER_PATH" git "$@"
"""


def remains(server: ServerProcess) -> list[str]:
    """What lies in the places of projects."""
    tops = [server.home / name for name in ("projects", "homes", "roots", "config/projects")]
    return [str(path) for top in tops if top.is_dir() for path in top.iterdir()]


@pytest.fixture
def git(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git that refuses a verb for as long as a file is there."""
    tmp_path.chmod(0o755)
    program = tmp_path / "git"
    program.write_text(
        GIT.format(home=tmp_path, verb=request.param).replace("$OTHER_PATH", os.environ["PATH"])
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "refuse").touch()
    return tmp_path / "refuse"


@pytest.mark.parametrize("git", ["init", "remote"], indirect=True)
async def test_a_project_that_git_refuses_is_not_there(server, git):
    await server.start()
    asked = {"name": "once", "remote_url": "https://example.org/it", "idempotency_key": "k"}
    async with HttpCaller(server.url, server.token()) as caller:
        for _ in range(2):
            with pytest.raises(ToolFailed, match=r"folder cannot be made: git .*: fatal: it is so"):
                await caller.call("project_create", **asked)
            assert (await caller.call("project_list"))["projects"] == []
            assert remains(server) == []
        git.unlink()
        made = await caller.call("project_create", **asked)
        assert [each["id"] for each in (await caller.call("project_list"))["projects"]] == [
            made["id"]
        ]
        assert (await caller.call("project_create", **asked))["id"] == made["id"]


async def test_a_project_whose_home_cannot_be_made_is_not_there(server):
    await server.start()
    homes = server.home / "homes"
    homes.rmdir()
    homes.touch()
    async with HttpCaller(server.url, server.token()) as caller:
        with pytest.raises(ToolFailed, match="the project's folder cannot be made"):
            await caller.call("project_create", name="once", init_git=False)
        assert (await caller.call("project_list"))["projects"] == []
        homes.unlink()
        homes.mkdir(0o700)
        made = await caller.call("project_create", name="once", init_git=False)
        assert len(remains(server)) == len([each for each in remains(server) if made["id"] in each])


async def test_of_a_project_that_a_killed_server_was_making_nothing_is_left(server):
    await server.start(failpoints="project.folders_made=kill")
    async with HttpCaller(server.url, server.token()) as caller:
        with contextlib.suppress(*BROKEN):
            await caller.call("project_create", name="once")
        assert await server.ended() == -9
    assert remains(server)
    await server.start()
    async with HttpCaller(server.url, server.token()) as caller, asyncio.timeout(20):
        assert (await caller.call("project_list"))["projects"] == []
        while remains(server):
            await asyncio.sleep(0.02)
        assert await caller.call("project_create", name="once")
