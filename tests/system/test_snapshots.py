"""The workspace is stored around each turn, and its owner is told what has changed.

The servers of this module have no setting of snapshots: they are taken by default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.consent import consent_in, delete_workspace_with_all
from tests.system.site import Site

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


def git(site, project, *arguments: str) -> str:
    home = site.server.home_of(project["id"])
    folder = home / "snapshots" / project["id"] / f"{project['default_workspace_id']}.git"
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", f"--git-dir={folder}", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


async def test_each_turn_that_changes_files_has_a_snapshot(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "exec echo one > file", project_id=project["id"])
        first = await agent.event("snapshot")
        await agent.say("say nothing")
        await agent.event("completion", nth=2)
        await agent.say("exec echo two >> file && mkdir folder && echo x > folder/inner")
        second = await agent.event("snapshot", nth=2)
    prefix = f"refs/oubliette/{agent.session_id}"
    assert (first["ref"], first["turn"], first["moment"]) == (f"{prefix}/1", 1, "end")
    assert (first["files"], first["insertions"], first["deletions"]) == (1, 1, 0)
    assert (second["ref"], second["files"], second["insertions"]) == (f"{prefix}/3", 2, 2)
    assert git(site, project, "show", f"{prefix}/1:file") == "one\n"
    assert git(site, project, "show", f"{prefix}/2:file") == "one\n"
    assert git(site, project, "show", f"{prefix}/3:file") == "one\ntwo\n"
    names = git(site, project, "ls-tree", "-r", "--name-only", f"{prefix}/3").split()
    assert names == ["file", "folder/inner"]


async def test_turns_that_wait_for_one_another_have_each_their_own_files(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "exec sleep 0.5; echo 1 >> file", project_id=project["id"])
        for number in (2, 3):
            await agent.say(f"exec echo {number} >> file")
        await agent.event("snapshot", turn=3, moment="end")
    for number in (1, 2, 3):
        lines = git(site, project, "show", f"refs/oubliette/{agent.session_id}/{number}:file")
        assert lines == "".join(f"{each}\n" for each in range(1, number + 1))


async def test_what_somebody_else_changed_between_turns_is_stored_before_the_next(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "exec echo 1 > first", project_id=project["id"])
        # Not only its turn: what is changed before this snapshot is taken, is in it.
        await agent.event("snapshot", turn=1, moment="end")
        workspace = (
            site.server.home_of(project["id"]) / "projects" / project["id"]
            / "workspaces" / project["default_workspace_id"]
        )  # fmt: skip
        (workspace / "by-a-person").write_text("text\n")
        await agent.say("exec rm -f by-a-person; echo x > by-the-agent")
        before = await agent.event("snapshot", turn=2, moment="start")
        after = await agent.event("snapshot", turn=2, moment="end")
    assert before["ref"] == f"refs/oubliette/{agent.session_id}/2-start"
    assert git(site, project, "show", f"{before['ref']}:by-a-person") == "text\n"
    assert git(site, project, "ls-tree", "--name-only", after["ref"]).split() == [
        "by-the-agent",
        "first",
    ]


async def test_a_workspace_that_is_deleted_can_be_found_again(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(
            caller, "exec echo one > file", project_id=project["id"], create_workspace=True
        )
        await agent.turn()
        await agent.end()
        found = (await agent.get())["workspace_id"]
        await site.eyes.call("workspace_delete", project_id=project["id"], workspace_id=found)
    deleted = {**project, "default_workspace_id": found}
    assert git(site, deleted, "show", "refs/oubliette/workspace/0-final:file") == "one\n"
    with pytest.raises(
        ToolFailed, match=f"the files of 1 workspaces would be lost.*{found}"
    ) as refused:
        await site.eyes.call("project_delete", project_id=project["id"])
    assert git(site, deleted, "show", "refs/oubliette/workspace/0-final:file") == "one\n"
    await site.eyes.call(
        "project_delete", project_id=project["id"], discard=consent_in(refused.value)
    )
    assert not (site.server.home_of(project["id"]) / "snapshots" / project["id"]).exists()


async def test_what_a_snapshot_lacks_is_deleted_with_consent_alone(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(
            caller, "exec head -c 30000000 /dev/zero > large; echo one > file",
            project_id=project["id"], create_workspace=True,
        )  # fmt: skip
        await agent.turn()
        await agent.end()
        found = (await agent.get())["workspace_id"]
    await delete_workspace_with_all(
        site.eyes.call, project["id"], found, lost="large: 30000000 bytes, of which"
    )


async def test_a_repository_that_was_removed_is_made_again_and_a_damaged_one_is_deleted_by_consent(
    site, tmp_path
) -> None:
    project = await site.new_project()
    repositories = site.server.home_of(project["id"]) / "snapshots" / project["id"]
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "exec echo one > file", project_id=project["id"])
        await agent.event("snapshot", turn=1, moment="end")
        repositories.rename(tmp_path / "removed")  # at once: git may be at work in it
        await agent.say("exec echo two > file")
        again = await agent.event("snapshot", turn=2, moment="end")
        assert git(site, project, "show", f"{again['ref']}:file") == "two\n"
        await agent.end()
    objects = repositories / f"{project['default_workspace_id']}.git" / "objects"
    objects.rename(tmp_path / "objects")
    with pytest.raises(ToolFailed, match="the files of 1 workspaces would be lost") as refused:
        await site.eyes.call("project_delete", project_id=project["id"])
    await site.eyes.call(
        "project_delete", project_id=project["id"], discard=consent_in(refused.value)
    )
    assert not repositories.exists()


async def test_a_project_without_files_is_deleted_at_once(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say hi", project_id=project["id"])
        await agent.turn()
        await agent.end()
    await site.eyes.call("project_delete", project_id=project["id"])
    assert not (site.server.home_of(project["id"]) / "projects" / project["id"]).exists()


async def test_an_agent_without_files_costs_no_repository_and_no_event(site) -> None:
    project = await site.new_project(init_git=True)
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say hi", project_id=project["id"])
        assert await agent.turn() == ["hi"]
        await agent.say("say again")
        assert await agent.turn() == ["again"]
        await agent.end()
        await agent.event("status", status="completed")
    assert [event for event in agent.log if event["type"] == "snapshot"] == []
    assert not (site.server.home_of(project["id"]) / "snapshots" / project["id"]).exists()


@pytest.fixture
def no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without git."""
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*") if os.access(folder, os.R_OK | os.X_OK) else ():
            link = tmp_path / program.name
            if not program.name.startswith("git") and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_git")
async def test_a_server_without_git_says_so_and_takes_none(zygote) -> None:
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        assert "no snapshots of workspaces without git" in server.log()
        site = Site(server)
        async with site.eyes, site.caller("http-auto") as caller:
            await site.open()
            project = await site.new_project(init_git=True)
            agent = await site.spawn(caller, "exec echo one > file", project_id=project["id"])
            assert (await agent.outcome())["exit_code"] == 0
            with pytest.raises(ToolFailed, match="git is missing where the server runs"):
                await site.eyes.call("session_diff", session_id=agent.session_id)
            await agent.end()
            assert [event for event in agent.log if event["type"] == "snapshot"] == []
            await site.eyes.call("project_delete", project_id=project["id"])
