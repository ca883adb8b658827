"""Children work on copies of a workspace, in workspaces and on branches of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oubliette as ob
from tests.callers import ToolFailed
from tests.git_hosts import GitHost, checkout

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {
    "snapshots.mode": "on",
    "agents.default": "scripted",
    "repositories.protocols": "http",
}
LONG = 60.0
WORK = "exec echo $OUBLIETTE_SESSION_ID >> shop.py && git branch --show-current && cat shop.py new"


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source", {"shop.py": "price = 1\n"}))
        yield started


def workspace(site, project, workspace_id: str) -> Path:
    home = site.server.home_of(project["id"])
    return home / "projects" / project["id"] / "workspaces" / workspace_id


def called(tool: str, **arguments: Any) -> str:
    return f"call {tool} {json.dumps(arguments)}"


async def test_the_children_of_a_map_work_on_branches_with_what_is_not_committed(
    site, caller, host
) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await site.spawn(
        caller,
        "exec echo new > new\n" + called("session_map", messages=[WORK] * 6, workspace="branch"),
        project_id=project["id"],
    )
    results = (await agent.outcome(LONG))["structured"]["results"]
    assert len({each["workspace_id"] for each in results}) == 6
    for each in results:
        assert each["branch"] == f"oubliette/{each['workspace_id']}"
        said = json.loads(each["result"])["stdout"].splitlines()
        assert said == [each["branch"], "price = 1", each["session_id"], "new"]
    default = workspace(site, project, project["default_workspace_id"])
    assert (default / "shop.py").read_text() == "price = 1\n"


async def test_a_child_gets_a_branch_by_a_message_and_another_one_shares(
    site, caller, host
) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await site.spawn(
        caller,
        "exec echo new > new\n" + called("session_message", message=WORK, workspace="branch"),
        project_id=project["id"],
    )
    answer = (await agent.outcome(LONG))["structured"]
    assert answer["branch"] == f"oubliette/{answer['workspace_id']}"
    assert answer["session_id"] in answer["result"]
    shared = (await agent.ask(called("session_message", message=WORK), LONG))["structured"]
    assert "workspace_id" not in shared
    assert "oubliette/default" in shared["result"]
    assert answer["session_id"] not in shared["result"]
    again = called(
        "session_message", message="x", session_id=shared["session_id"], workspace="branch"
    )
    assert "workspace is for new sessions" in json.dumps(await agent.ask(again, LONG))


async def test_a_caller_starts_sessions_on_branches(site, caller) -> None:
    project = await site.new_project(init_git=False)
    first = await site.spawn(caller, "exec echo 1 > one", project_id=project["id"])
    await first.turn()
    made = await caller.call(
        "session_message",
        project_id=project["id"],
        message="exec rm one; touch two",
        workspace="branch",
    )
    assert made["spawned"]
    assert made["workspace_created"]
    assert made["branch"] is None
    await site.agent(made["session_id"]).event("completion")
    own = workspace(site, project, made["workspace_id"])
    assert not (own / "one").exists()
    assert (workspace(site, project, project["default_workspace_id"]) / "one").exists()
    done = await caller.call(
        "session_map",
        project_id=project["id"],
        messages=["exec ls", "exec ls"],
        workspace="branch",
        workspace_id=made["workspace_id"],
    )
    assert len({each["workspace_id"] for each in done["results"]} | {made["workspace_id"]}) == 3
    assert all("two" in each["result"] for each in done["results"])


async def test_a_branch_is_for_a_new_session_of_a_workspace_that_is_there(site, caller) -> None:
    project = await site.new_project()
    first = await site.spawn(caller, "say hi", project_id=project["id"])
    await first.turn()
    asked: dict[str, Any] = {"message": "say hi", "workspace": "branch"}
    with pytest.raises(ToolFailed, match="session_id: leave it out with workspace"):
        await caller.call("session_message", session_id=first.session_id, **asked)
    with pytest.raises(ToolFailed, match="create_workspace: leave it out"):
        await caller.call(
            "session_message", project_id=project["id"], create_workspace=True, **asked
        )
    other = await site.new_project()
    with pytest.raises(ToolFailed, match="there is no workspace"):
        await caller.call(
            "session_message",
            project_id=project["id"],
            workspace_id=other["default_workspace_id"],
            **asked,
        )
    listed = await site.eyes.call("workspace_list", project_id=project["id"])
    assert len(listed["workspaces"]) == 1


@pytest.mark.whole
async def test_twenty_children_work_on_twenty_branches(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await site.spawn(
        caller,
        "exec touch new\n" + called("session_map", messages=[WORK] * 20, workspace="branch"),
        project_id=project["id"],
    )
    results = (await agent.outcome(LONG))["structured"]["results"]
    assert len({each["branch"] for each in results}) == 20
    for each in results:
        own = workspace(site, project, each["workspace_id"]) / "shop.py"
        assert own.read_text() == f"price = 1\n{each['session_id']}\n"


@pytest.mark.whole
async def test_a_command_and_a_program_start_sessions_on_branches(site, caller, oubliette) -> None:
    project = await site.new_project(init_git=False)
    first = await site.spawn(caller, "exec echo 1 > one", project_id=project["id"])
    await first.turn()
    done = await oubliette(
        "session", "spawn", project["id"], "exec cat one", "--on-branch", "-o", "json"
    )
    assert done.code == 0, done.err
    assert done.json["workspace_id"] != project["default_workspace_id"]
    async with ob.connect(site.server.url, token=site.server.token("write")) as system:
        mine = await system.project(project["name"])
        answer = await mine.run("exec cat one; touch two", workspace="branch")
        assert '"stdout": "1\\n"' in answer.text
    assert not (workspace(site, project, project["default_workspace_id"]) / "two").exists()
