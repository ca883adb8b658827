"""Turns are listed with their snapshots, states are kept by name, and older ones come back."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import oubliette as ob
from tests.callers import ToolFailed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {"snapshots.mode": "on", "snapshots.max_file_bytes": 1000, "agents.default": "scripted"}


def workspace(site, project) -> Path:
    home = site.server.home_of(project["id"])
    folder = home / "projects" / project["id"] / "workspaces"
    return folder / project["default_workspace_id"]


def names(site, project) -> set[str]:
    return {each.name for each in workspace(site, project).iterdir()} - {".rlm-context", ".factory"}


async def two_turns(site, caller):
    project = await site.new_project()
    agent = await site.spawn(caller, "exec echo 1 > one", project_id=project["id"])
    await agent.turn()
    await agent.say("exec rm one; mkdir folder; echo 2 > folder/two")
    await agent.turn()
    # Not only the turn: what is changed before its snapshot is taken, is in it.
    await agent.event("snapshot", turn=2, moment="end")
    return project, agent


async def test_turns_are_listed_with_what_they_changed_and_their_snapshots(site) -> None:
    async with site.caller("http-auto") as caller:
        _, agent = await two_turns(site, caller)
        log = await site.eyes.call("session_log", session_id=agent.session_id)
        first, second = log["turns"]
        assert (first["turn"], first["prompt"], first["status"]) == (
            1, "exec echo 1 > one", "completed",
        )  # fmt: skip
        assert (first["files"], first["insertions"], first["deletions"]) == (1, 1, 0)
        assert (second["files"], second["insertions"], second["deletions"]) == (2, 1, 1)
        assert [each["name"] for each in first["snapshots"]] == ["1"]
        assert [each["name"] for each in second["snapshots"]] == ["2-start", "2"]
        page = await site.eyes.call("session_log", session_id=agent.session_id, limit=1)
        rest = await site.eyes.call(
            "session_log", session_id=agent.session_id, cursor=page["next_cursor"]
        )
        assert page["turns"] + rest["turns"] == log["turns"]
        assert rest["next_cursor"] is None


async def test_an_older_state_comes_back_and_so_does_what_was_there(site) -> None:
    async with site.caller("http-auto") as caller:
        project, agent = await two_turns(site, caller)
        (workspace(site, project) / "of-mine").write_text("since")
        done = await caller.call("session_restore", session_id=agent.session_id, turn=1)
        assert done["restored"] == "1"
        assert names(site, project) == {"one"}
        assert (await caller.call("session_diff", session_id=agent.session_id))["files"] == 1
        await caller.call("session_restore", session_id=agent.session_id, turn=done["kept_as"])
        assert names(site, project) == {"folder", "of-mine"}
        # The conversation goes on in what is there now.
        await agent.say("exec ls")
        assert "of-mine" in (await agent.turn())[0]


async def test_nothing_is_restored_while_a_turn_runs(site) -> None:
    async with site.caller("http-auto") as caller:
        project, agent = await two_turns(site, caller)
        await agent.say("exec touch begun\nsleep 60")
        await agent.event("message", nth=3)
        with pytest.raises(ToolFailed, match="runs or waits in this workspace"):
            await caller.call("session_restore", session_id=agent.session_id, turn=1)
        assert "begun" in names(site, project)
        await caller.call("session_interrupt", session_id=agent.session_id)
        await agent.turn()
        await caller.call("session_restore", session_id=agent.session_id, turn=1)
        assert names(site, project) == {"one"}


async def test_what_a_turn_has_done_is_kept_before_it_is_interrupted(site) -> None:
    async with site.caller("http-auto") as caller:
        _, agent = await two_turns(site, caller)
        await agent.say("exec touch begun\nsleep 60")
        await agent.event("message", nth=3)
        await caller.call("session_interrupt", session_id=agent.session_id)
        await agent.event("snapshot", turn=3, moment="interrupt")


async def test_a_message_that_comes_during_a_restore_finds_the_older_state(site) -> None:
    async with site.caller("http-auto") as caller:
        _, agent = await two_turns(site, caller)
        restoring = asyncio.ensure_future(
            caller.call("session_restore", session_id=agent.session_id, turn=1)
        )
        # It goes on: a turn that is over when the restore looks for one is in nobody's way.
        said = asyncio.ensure_future(agent.say("exec ls\nsleep 60"))
        done = await asyncio.gather(restoring, said, return_exceptions=True)
        answer = (await agent.event("message", nth=3))["text"]
        await caller.call("session_interrupt", session_id=agent.session_id)
        await agent.turn()
        if isinstance(done[0], ToolFailed):  # the message was first
            assert "runs or waits" in str(done[0])
            assert "folder" in answer
        else:
            assert "one" in answer
            assert "folder" not in answer


async def test_files_that_no_snapshot_has_are_not_removed_without_consent(site) -> None:
    async with site.caller("http-auto") as caller:
        project, agent = await two_turns(site, caller)
        (workspace(site, project) / "large").write_bytes(b"x" * 2000)
        with pytest.raises(ToolFailed, match="large: 2000 bytes, of which") as refused:
            await caller.call("session_restore", session_id=agent.session_id, turn=1)
        assert "large" in names(site, project)
        consent = str(refused.value).partition('discard="')[2][:40]
        with pytest.raises(ToolFailed, match="would be lost"):
            await caller.call(
                "session_restore", session_id=agent.session_id, turn=1, discard="0" * 40
            )
        await caller.call("session_restore", session_id=agent.session_id, turn=1, discard=consent)
        assert names(site, project) == {"one"}


async def test_a_checkpoint_has_a_name_of_its_own(site) -> None:
    async with site.caller("http-auto") as caller:
        project, agent = await two_turns(site, caller)
        (workspace(site, project) / "draft").write_text("1\n")
        kept = await caller.call("checkpoint", session_id=agent.session_id, name="before-orm")
        assert kept["snapshot"] == "2-checkpoint-before-orm"
        assert (kept["files"], kept["insertions"], kept["torn"]) == (1, 1, False)
        with pytest.raises(ToolFailed, match="has the checkpoint 2-checkpoint-before-orm already"):
            await caller.call("checkpoint", session_id=agent.session_id, name="before-orm")
        (workspace(site, project) / "draft").unlink()
        await caller.call("session_restore", session_id=agent.session_id, turn=kept["snapshot"])
        assert "draft" in names(site, project)


async def test_a_checkpoint_is_restored_by_the_name_that_it_was_given(site, oubliette) -> None:
    async with site.caller("http-auto") as caller:
        project, agent = await two_turns(site, caller)
        (workspace(site, project) / "draft").write_text("1\n")
        await caller.call("checkpoint", session_id=agent.session_id, name="good")
        await caller.call("session_restore", session_id=agent.session_id, turn=1)
        done = await caller.call("session_restore", session_id=agent.session_id, checkpoint="good")
        assert done["restored"] == "2-checkpoint-good"
        assert "draft" in names(site, project)
        changes = await caller.call(
            "session_diff", session_id=agent.session_id, from_turn=1, to_turn="good"
        )
        assert changes["files"] == 3
        with pytest.raises(ToolFailed, match="no checkpoint bad; the session has: good"):
            await caller.call("session_restore", session_id=agent.session_id, checkpoint="bad")
        with pytest.raises(ToolFailed, match="give either turn or checkpoint"):
            await caller.call("session_restore", session_id=agent.session_id)
        with pytest.raises(ToolFailed, match="give either turn or checkpoint"):
            await caller.call(
                "session_restore", session_id=agent.session_id, checkpoint="good", turn=1
            )
        await caller.call("session_restore", session_id=agent.session_id, turn=1)
    back = await oubliette("restore", agent.session_id, "--checkpoint", "good")
    assert back.code == 0, back.err
    assert "draft" in names(site, project)


async def test_an_agent_with_a_key_keeps_a_state_of_its_own_workspace(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(
            caller,
            'exec echo 1 > one\ncall oubliette_checkpoint {"name": "mine"}\nexec rm one',
            project_id=project["id"],
            api_key_scope="write",
        )
        await agent.turn()
        await caller.call("session_restore", session_id=agent.session_id, turn="1-checkpoint-mine")
        assert names(site, project) == {"one"}
        with pytest.raises(ToolFailed, match="session_id: is required"):
            await caller.call("checkpoint")


@pytest.mark.whole
async def test_the_command_restores_and_prints_the_way_back(site, oubliette) -> None:
    async with site.caller("http-auto") as caller:
        project, agent = await two_turns(site, caller)
        done = await oubliette("restore", agent.session_id, "--turn", "1")
    assert done.code == 0, done.err
    assert names(site, project) == {"one"}
    back = done.err.strip().splitlines()[-1].partition("oubliette ")[2]
    assert (await oubliette(*back.split())).code == 0
    assert names(site, project) == {"folder"}
    nameless = await oubliette("restore", agent.session_id)
    assert nameless.code == 2
    assert "--turn: is required" in nameless.err


@pytest.mark.whole
async def test_a_program_lists_keeps_and_restores(site) -> None:
    async with site.caller("http-auto") as caller:
        project, agent = await two_turns(site, caller)
    async with ob.connect(site.server.url, token=site.server.token("write")) as system:
        session = await system.session(agent.session_id)
        assert [(each.turn, each.files) for each in await session.log()] == [(1, 1), (2, 2)]
        assert (await session.checkpoint("mine")).snapshot == "2-checkpoint-mine"
        with pytest.raises(ob.AlreadyExists):
            await session.checkpoint("mine")
        done = await session.restore(1)
        assert names(site, project) == {"one"}
        await session.restore(done.kept_as or "")
        assert names(site, project) == {"folder"}
        assert (await session.restore(checkpoint="mine")).restored == "2-checkpoint-mine"
        with pytest.raises(ob.NotFound, match="the session has"):
            await session.restore(17)
