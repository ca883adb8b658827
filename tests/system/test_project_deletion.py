"""A project of a repository is deleted without consent only if its source has all that is there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.callers import ToolFailed
from tests.consent import consent_in, delete_workspace_with_all
from tests.git_hosts import GitHost, checkout, git
from tests.selection import core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {
    "agents.default": "scripted",
    "repositories.protocols": "http,https",
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source"))
        started.receiving("shop")
        yield started


async def worked(site, host, command: str, **where: bool):
    """A project, and a session that has run a command in it and ended."""
    project = await site.new_project(repository={"url": host.url("shop"), "push": True})
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, f"exec {command}", project_id=project["id"], **where)
        assert (await agent.outcome())["exit_code"] == 0
        await agent.end()
    return project, agent


@pytest.mark.whole
async def test_what_was_not_changed_or_was_pushed_is_not_lost(site, host) -> None:
    unchanged, _ = await worked(site, host, "git status --short")
    await site.eyes.call("project_delete", project_id=unchanged["id"])
    project, agent = await worked(site, host, "echo 1 > one")
    with pytest.raises(ToolFailed, match="would be lost"):
        await site.eyes.call("project_delete", project_id=project["id"])
    await site.eyes.call("session_merge", session_id=agent.session_id, into="work")
    with pytest.raises(ToolFailed, match="would be lost"):
        await site.eyes.call("project_delete", project_id=project["id"])
    await site.eyes.call("session_push", session_id=agent.session_id, branch="work")
    await site.eyes.call("project_delete", project_id=project["id"])


STASHED = "echo 2 > README && git stash -q"


@pytest.mark.parametrize(
    "command",
    core(
        {STASHED},
        [
            "git commit -q --allow-empty -m kept && git branch aside && git reset -q --hard HEAD^",
            STASHED,
            "git init -q nested && rm -rf nested/.git/hooks",
        ],
    ),
)
async def test_commits_that_no_file_shows_are_not_lost_either(site, host, command) -> None:
    identity = "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=A"
    project, _ = await worked(
        site, host, f"{identity} GIT_COMMITTER_EMAIL=a@x; {command}; git status --short"
    )
    with pytest.raises(ToolFailed, match="would be lost"):
        await site.eyes.call("project_delete", project_id=project["id"])


def stored(site, project, workspace: str, *arguments: str) -> str:
    home = site.server.home_of(project["id"])
    folder = home / "snapshots" / project["id"] / f"{workspace}.git"
    return git(folder, *arguments)


async def test_a_project_is_deleted_with_consent_to_what_its_workspaces_have_now(
    site, host, oubliette
) -> None:
    project, agent = await worked(site, host, "echo one > file")
    workspace = (await agent.get())["workspace_id"]
    first = await oubliette("project", "delete", project["id"])
    async with site.caller("http-auto") as caller:
        again = await site.spawn(
            caller, "exec echo two > file", project_id=project["id"], workspace_id=workspace
        )
        await again.turn()
        await again.end()
    old = first.err.partition('discard="')[2][:40]
    refused = await oubliette("project", "delete", project["id"], "--discard", old)
    tree = refused.err.partition('discard="')[2][:40]
    assert (first.code, refused.code, tree != old) == (1, 1, True)
    assert stored(site, project, workspace, "cat-file", "-p", f"{tree}:file") == "two\n"
    done = await oubliette("project", "delete", project["id"], "--discard", tree)
    assert done.code == 0, done.err


async def test_what_a_deleted_workspace_had_is_lost_with_the_project_by_consent(site, host) -> None:
    project, agent = await worked(site, host, "echo one > file", create_workspace=True)
    found = (await agent.get())["workspace_id"]
    await site.eyes.call("workspace_delete", project_id=project["id"], workspace_id=found)
    where = {"project_id": project["id"]}
    with pytest.raises(ToolFailed, match=f"workspaces would be lost.*{found}") as refused:
        await site.eyes.call("project_delete", **where)
    last = "refs/oubliette/workspace/0-final:file"
    assert stored(site, project, found, "show", last) == "one\n"
    with pytest.raises(ToolFailed, match="would be lost"):
        await site.eyes.call("project_delete", **where, discard="0" * 40)
    await site.eyes.call("project_delete", **where, discard=consent_in(refused.value))
    assert not (site.server.home_of(project["id"]) / "snapshots" / project["id"]).exists()


async def test_a_workspace_with_more_than_its_snapshot_is_deleted_with_consent_alone(
    site, host
) -> None:
    command = "head -c 30000000 /dev/zero > large; echo one > file"
    project, agent = await worked(site, host, command, create_workspace=True)
    found = (await agent.get())["workspace_id"]
    await delete_workspace_with_all(
        site.eyes.call, project["id"], found, lost="large: 30000000 bytes, of which"
    )
