"""From an empty home to a change in a person's checkout, and many workspaces of one project."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.model_server import ModelServer
from tests.git_hosts import ENVIRONMENT, GitHost, checkout, git
from tests.system.real_agents import SLOW, site_on
from tests.system.test_git_fetch import address, done

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.system.site import Site

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {
    "snapshots.mode": "on",
    "agents.default": "scripted",
    "repositories.protocols": "http,https",
}
MANY = 20
ROOT = Path(__file__).parents[2]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source", {"shop.py": "price = 1\n"}))
        yield started


@pytest.fixture(
    params=[
        "process",
        pytest.param("docker", marks=pytest.mark.requires("docker")),
        pytest.param("podman", marks=pytest.mark.requires("podman")),
    ]
)
async def place(
    request: pytest.FixtureRequest, zygote: Any, model: ModelServer
) -> AsyncIterator[Site]:
    """A server on an empty home."""
    more = {key: value for key, value in SETTINGS.items() if key != "agents.default"}
    async with site_on(request.param, zygote, model, **more) as site:
        yield site


async def oubliette(site: Site, folder: Path, *words: str) -> str:
    """Run a command as a person does in a checkout; return its output."""
    environ = {**os.environ, **ENVIRONMENT, "OUBLIETTE_HOME": str(site.server.home)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oubliette.cli.main", *words,
        cwd=folder, env={**environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.requires("opencode")
async def test_a_change_of_opencode_comes_into_a_checkout(place, host, tmp_path) -> None:
    """The checkout is of the same repository, and on a branch of its own."""
    project = await place.new_project(repository={"url": host.url("shop")})
    edit = {"filePath": "shop.py", "oldString": "price = 1", "newString": "price = 2"}
    prompt = f'call read {{"filePath": "shop.py"}}\ncall edit {json.dumps(edit)}\nsay done'
    async with place.caller("http-auto") as caller:
        agent = await place.spawn(caller, prompt, agent="opencode", project_id=project["id"])
        assert (await agent.turn(2 * SLOW))[-1] == "done"
        changed = await caller.call("session_diff", session_id=agent.session_id)
        assert changed["files"] == 1
    git(tmp_path, "clone", "--quiet", str(host.folder / "shop.git"), "mine")
    mine = tmp_path / "mine"
    git(mine, "checkout", "--quiet", "-b", "fix")
    await oubliette(place, mine, "apply", agent.session_id)
    assert (mine / "shop.py").read_text() == "price = 2\n"
    git(mine, "commit", "--quiet", "-a", "-m", "raise it")
    url = address(place, project["id"], place.principal("read"))
    await done(mine, "fetch", "--quiet", url, "refs/oubliette/*:refs/oubliette/*")
    snapshot = f"refs/oubliette/{agent.session_id}/1"
    assert git(mine, "rev-parse", "fix:shop.py") == git(mine, "rev-parse", f"{snapshot}:shop.py")


@pytest.mark.requires("opencode")
async def test_the_best_of_three_forks_of_opencode_is_merged(place, host, tmp_path) -> None:
    """It begins at an empty home, and ends with a branch that a person has fetched."""
    project = await place.new_project(repository={"url": host.url("shop")})
    async with place.caller("http-auto") as caller:
        first = await place.spawn(
            caller, "say shop.py has the price", agent="opencode", project_id=project["id"]
        )
        await first.turn(2 * SLOW)
        write = {"filePath": "notes.md", "content": "raised\n"}
        edit = {"filePath": "shop.py", "oldString": "price = 1", "newString": "price = 2"}
        prompt = (
            f'call read {{"filePath": "shop.py"}}\ncall edit {json.dumps(edit)}\n'
            f"call write {json.dumps(write)}\nsay done"
        )
        forks = await caller.call(
            "session_fork", session_id=first.session_id, prompt=prompt, count=3
        )
        assert forks["started"] == 3, forks
        agents = [place.agent(each["session_id"]) for each in forks["sessions"]]
        for agent in agents:
            assert (await agent.turn(2 * SLOW))[-1] == "done"
        compared = await caller.call(
            "session_compare",
            project_id=project["id"],
            session_ids=[agent.session_id for agent in agents],
        )
        assert {each["path"]: each["outcomes"] for each in compared["files"]} == {
            "notes.md": [1, 1, 1],
            "shop.py": [1, 1, 1],
        }
        merged = await caller.call(
            "session_merge", session_id=agents[1].session_id, into="fix/price"
        )
        assert merged["merged"], merged
    git(tmp_path, "clone", "--quiet", str(host.folder / "shop.git"), "mine")
    mine = tmp_path / "mine"
    url = address(place, project["id"], place.principal("read"))
    await done(mine, "fetch", "--quiet", url, "fix/price")
    git(mine, "merge", "--quiet", "--ff-only", "FETCH_HEAD")
    assert (mine / "shop.py").read_text() == "price = 2\n"
    assert (mine / "notes.md").read_text() == "raised\n"


@pytest.mark.whole
async def test_many_sessions_work_on_branches_of_their_own_at_the_same_time(
    site, host, tmp_path
) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})

    async def work(caller: Any, number: int) -> Any:
        prompt = (
            f"exec git branch --show-current && echo 'price = {number + 10}' > shop.py"
            f" && echo {number} > file{number} && git add --all && git commit -qm {number}"
        )
        agent = await site.spawn(caller, prompt, project_id=project["id"], create_workspace=True)
        outcome = await agent.outcome(SLOW)
        assert outcome["exit_code"] == 0, outcome
        workspace = (await agent.get())["workspace_id"]
        assert outcome["stdout"].strip() == f"oubliette/{workspace}"
        return agent

    async with site.caller("http-auto") as caller:
        agents = await asyncio.gather(*(work(caller, number) for number in range(MANY)))
        for number, agent in enumerate(agents):
            found = await caller.call("session_diff", session_id=agent.session_id, format="patch")
            lines = [line for line in found["patch"].splitlines() if line[:1] in {"+", "-"}]
            assert f"+price = {number + 10}" in lines
            assert "-price = 1" in lines
            others = {f"+++ b/file{other}" for other in range(MANY) if other != number}
            assert not others & set(lines)
    git(tmp_path, "init", "--quiet", "mine")
    url = address(site, project["id"], site.principal("read"))
    await done(tmp_path / "mine", "fetch", "--quiet", url, "refs/oubliette/*:refs/oubliette/*")
    for number, agent in enumerate(agents):
        ref = f"refs/oubliette/{agent.session_id}/1"
        assert git(tmp_path / "mine", "show", f"{ref}:file{number}") == f"{number}\n"
