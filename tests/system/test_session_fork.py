"""Sessions are forked: the files and the conversation of a turn, in workspaces of their own."""

from __future__ import annotations

import asyncio
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
    "snapshots.max_file_bytes": 1000,
    "agents.default": "scripted",
    "repositories.protocols": "http",
}


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


def workspaces(site, project) -> Path:
    return site.server.home_of(project["id"]) / "projects" / project["id"] / "workspaces"


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()} - {".rlm-context", ".factory", ".git"}


async def two_turns(site, caller, **project):
    project = await site.new_project(**project)
    agent = await site.spawn(
        caller, "remember colour red\nexec echo 1 > one", project_id=project["id"]
    )
    await agent.turn()
    await agent.say("remember colour blue\nexec rm one; mkdir folder; echo 2 > folder/two")
    await agent.turn()
    return project, agent


async def fork(caller, agent, prompt: str, **more: Any) -> dict[str, Any]:
    return await caller.call("session_fork", session_id=agent.session_id, prompt=prompt, **more)


async def ended(site, session: dict[str, Any]) -> dict[str, Any]:
    """Return a session that was started, after its turn."""
    assert session["error"] is None, session
    async with asyncio.timeout(60):
        while True:
            page = await site.eyes.call(
                "session_events",
                session_id=session["session_id"],
                since_index=session["last_index"],
                wait_seconds=30,
            )
            if any(each["type"] == "completion" for each in page["events"]):
                return await site.eyes.call("session_get", session_id=session["session_id"])
            session = {**session, "last_index": page["last_index"]}


async def test_a_fork_has_the_files_and_the_conversation_of_a_turn(site, caller) -> None:
    project, agent = await two_turns(site, caller)
    done = await fork(caller, agent, "recall colour", at_turn=1)
    assert (done["forked_at"], done["forked_at_turn"], done["started"]) == ("1", 1, 1)
    (session,) = done["sessions"]
    assert session["conversation"] == "native"
    found = await ended(site, session)
    assert found["final_response"] == "red"
    assert (found["forked_from"], found["forked_at"], found["forked_at_turn"]) == (
        agent.session_id, "1", 1,
    )  # fmt: skip
    assert names(workspaces(site, project) / session["workspace_id"]) == {"one"}
    assert names(workspaces(site, project) / project["default_workspace_id"]) == {"folder"}


async def test_without_a_turn_a_fork_begins_with_the_newest_snapshot(site, caller) -> None:
    project, agent = await two_turns(site, caller)
    await agent.event("snapshot", turn=2, moment="end")
    await caller.call("session_end", session_id=agent.session_id)
    done = await fork(caller, agent, "recall colour")
    assert done["forked_at_turn"] == 2
    (session,) = done["sessions"]
    assert (await ended(site, session))["final_response"] == "blue"
    assert names(workspaces(site, project) / session["workspace_id"]) == {"folder"}


async def test_a_session_that_runs_is_forked_at_its_last_finished_turn(site, caller) -> None:
    project, agent = await two_turns(site, caller)
    await agent.say("exec touch begun\nremember colour green\nsleep 60")
    await agent.event("message", text="remembered colour", turn=3)
    done = await fork(caller, agent, "recall colour")
    assert (done["forked_at"], done["forked_at_turn"]) == ("2", 2)
    (session,) = done["sessions"]
    assert (await ended(site, session))["final_response"] == "blue"
    assert names(workspaces(site, project) / session["workspace_id"]) == {"folder"}
    await caller.call("session_interrupt", session_id=agent.session_id)


@pytest.mark.whole
async def test_a_first_turn_that_runs_has_nothing_to_fork_but_its_start(site, caller) -> None:
    project = await site.new_project()
    agent = await site.spawn(caller, "exec touch begun\nsleep 60", project_id=project["id"])
    await agent.event("message", turn=1)
    await caller.call("checkpoint", session_id=agent.session_id, name="now")
    with pytest.raises(ToolFailed, match="no turn before turn 1.*1-checkpoint-now"):
        await fork(caller, agent, "say hi")
    done = await fork(caller, agent, "say hi", at_turn="1-checkpoint-now")
    (session,) = done["sessions"]
    await ended(site, session)
    assert names(workspaces(site, project) / session["workspace_id"]) == {"begun"}
    await caller.call("session_interrupt", session_id=agent.session_id)


@pytest.mark.whole
async def test_forks_of_one_session_are_compared(site, caller) -> None:
    project, agent = await two_turns(site, caller)
    done = await fork(caller, agent, "exec echo $RANDOM$$ > folder/two; echo same > new", count=3)
    assert done["started"] == 3
    for session in done["sessions"]:
        await ended(site, session)
    ids = [each["session_id"] for each in done["sessions"]]
    assert len({each["workspace_id"] for each in done["sessions"]}) == 3
    found = await site.eyes.call("session_compare", project_id=project["id"], session_ids=ids)
    assert [each["files"] for each in found["sessions"]] == [2, 2, 2]
    assert {each["path"]: each["outcomes"] for each in found["files"]} == {
        "folder/two": [1, 2, 3],
        "new": [1, 1, 1],
    }


async def test_each_fork_starts_or_fails_alone_and_leaves_no_workspace(site, caller) -> None:
    project = await site.new_project(limits={"max_agents": 3})
    tree = {"id": "best-of", "limits": {"max_agents": 3}}
    agent = await site.spawn(
        caller, "exec echo 1 > one", project_id=project["id"], new_session=True, tree=tree
    )
    await agent.turn()
    await agent.event("snapshot", turn=1, moment="end")
    done = await fork(caller, agent, "exec ls", count=4)
    failed = [each for each in done["sessions"] if each["error"]]
    assert (done["started"], len(failed)) == (2, 2)
    assert {each["error"]["code"] for each in failed} == {"limit_exceeded"}
    assert "max_agents" in failed[0]["error"]["message"]
    listed = await site.eyes.call("workspace_list", project_id=project["id"])
    known = {each["id"] for each in listed["workspaces"]}
    assert len(known) == 3
    assert {each.name for each in workspaces(site, project).iterdir()} == known
    new = site.server.home_of(project["id"]) / "repositories" / project["id"]
    assert list(new.iterdir()) == []


async def test_a_fork_with_an_agent_that_is_not_there_is_one_error(site, caller) -> None:
    project, agent = await two_turns(site, caller)
    with pytest.raises(ToolFailed, match="agent: there is no 'nobody' here; choose one of"):
        await caller.call(
            "session_fork",
            session_id=agent.session_id,
            prompt="say hi",
            agent="nobody",
            count=3,
        )
    assert len(list(workspaces(site, project).iterdir())) == 1


async def test_a_repeated_request_starts_no_second_fork(site, caller) -> None:
    project, agent = await two_turns(site, caller)
    first, again = await asyncio.gather(
        *(fork(caller, agent, "say hi", count=2, at_turn=1, idempotency_key="k") for _ in range(2))
    )
    assert first["sessions"] == again["sessions"]
    assert len({each["session_id"] for each in first["sessions"]}) == 2
    third = await fork(caller, agent, "say hi", count=2, at_turn=1, idempotency_key="k")
    assert third["sessions"] == first["sessions"]
    assert len(list(workspaces(site, project).iterdir())) == 3
    other = await fork(caller, agent, "say ho", count=1, at_turn=1, idempotency_key="k")
    assert "other arguments" in other["sessions"][0]["error"]["message"]


@pytest.mark.whole
async def test_ignored_files_come_along_and_those_that_no_snapshot_has_are_named(
    site, caller
) -> None:
    project = await site.new_project()
    agent = await site.spawn(
        caller,
        "exec head -c 2000 /dev/zero > large; echo 1 > one; printf 'one\\nlarge\\n' > .gitignore",
        project_id=project["id"],
    )
    await agent.turn()
    (session,) = (await fork(caller, agent, "say hi"))["sessions"]
    assert session["missing_count"] == 1
    assert "2000 bytes" in session["missing"]["large"]
    assert names(workspaces(site, project) / session["workspace_id"]) == {"one", ".gitignore"}
    await ended(site, session)
    page = await site.eyes.call("session_events", session_id=session["session_id"])
    (told,) = [each for each in page["events"] if each.get("kind") == "session_forked"]
    assert told["forked_from"] == agent.session_id
    assert told["missing_count"] == 1
    (session,) = (await fork(caller, agent, "say hi", large_files=True))["sessions"]
    assert session["missing_count"] == 0
    whole = workspaces(site, project) / session["workspace_id"]
    assert names(whole) == {"one", "large", ".gitignore"}
    assert (whole / "large").read_bytes() == bytes(2000)


@pytest.mark.whole
async def test_a_workspace_that_always_was_empty_is_forked_as_such(site, caller) -> None:
    project = await site.new_project(init_git=False)
    agent = await site.spawn(caller, "remember colour red", project_id=project["id"])
    await agent.turn()
    done = await fork(caller, agent, "recall colour")
    assert done["forked_at_turn"] == 1
    assert (await ended(site, done["sessions"][0]))["final_response"] == "red"
    begun = await fork(caller, agent, "recall colour", at_turn=0)
    assert begun["forked_at_turn"] == 0
    assert (await ended(site, begun["sessions"][0]))["final_response"] == ""
    with pytest.raises(ToolFailed, match="give a turn up to 1"):
        await fork(caller, agent, "recall colour", at_turn=2)


@pytest.mark.whole
async def test_a_fork_is_forked_again(site, caller) -> None:
    _, agent = await two_turns(site, caller)
    (first,) = (await fork(caller, agent, "say hi", at_turn=1))["sessions"]
    await ended(site, first)
    again = await caller.call(
        "session_fork", session_id=first["session_id"], prompt="recall colour\nexec ls"
    )
    assert again["forked_at_turn"] == 1
    found = await ended(site, again["sessions"][0])
    assert "one" in found["final_response"]


@pytest.mark.whole
async def test_a_fork_works_where_workspaces_are_isolated(site, caller) -> None:
    _, agent = await two_turns(site, caller, workspace_isolation=True)
    done = await fork(caller, agent, "recall colour\nexec ls && cat one", at_turn=1)
    found = await ended(site, done["sessions"][0])
    assert '"stdout": "one\\n1\\n"' in found["final_response"]


async def test_an_agent_forks_itself_within_the_limits_of_its_tree(site, caller) -> None:
    project = await site.new_project(limits={"max_agents": 2})
    agent = await site.spawn(
        caller, "exec echo 1 > one", project_id=project["id"], api_key_scope="write"
    )
    await agent.turn()
    asked = {"session_id": agent.session_id, "prompt": "exec ls", "count": 2}
    outcome = await agent.ask(f"call oubliette_session_fork {json.dumps(asked)}", 60)
    done = outcome["structured"]
    assert (done["started"], done["forked_at_turn"]) == (1, 1)
    (started,) = [each for each in done["sessions"] if each["error"] is None]
    found = await ended(site, started)
    assert found["parent_session_id"] == agent.session_id
    assert "one" in found["final_response"]


@pytest.mark.whole
async def test_the_command_prints_the_ids_of_the_new_sessions(site, caller, oubliette) -> None:
    project, agent = await two_turns(site, caller)
    done = await oubliette("fork", agent.session_id, "recall colour", "--at", "1", "--count", "2")
    assert done.code == 0, done.err
    ids = done.out.split()
    assert len(ids) == 2
    assert "the files of 1" in done.err
    assert "know the conversation up to turn 1" in done.err
    for each in ids:
        shown = await oubliette("session", "show", each)
        assert agent.session_id in shown.out
    wrong = await oubliette("fork", agent.session_id, "say hi", "--at", "7")
    assert wrong.code == 3
    assert "there is no snapshot of" in wrong.err
    assert len(list(workspaces(site, project).iterdir())) == 3


async def test_a_program_forks_a_session(site, caller) -> None:
    _, agent = await two_turns(site, caller)
    async with ob.connect(site.server.url, token=site.server.token("write")) as system:
        session = await system.session(agent.session_id)
        forks = await session.fork("recall colour", at_turn=1, count=2)
        for each in forks:
            assert isinstance(each, ob.Session)
            assert each.fork_info is not None
            assert (each.fork_info.forked_from, each.fork_info.forked_at) == (session.id, "1")
            assert each.turn is not None
            assert (await each.turn).text == "red"
            assert (await each.get()).forked_at_turn == 1
        with pytest.raises(ob.NotFound):
            await session.fork("say hi", at_turn=7)


# ---------------------------------------------------------------------- repositories


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source", {"shop.py": "price = 1\n"}))
        yield started


async def test_a_fork_of_a_repository_is_a_clone_on_a_branch_of_its_own(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await site.spawn(
        caller,
        "exec echo 'price = 2' > shop.py && git commit -qam dearer"
        " && echo 'price = 3' > shop.py && echo new > new",
        project_id=project["id"],
    )
    await agent.turn()
    await agent.event("snapshot", turn=1, moment="end")
    await agent.say("exec git checkout -q -- . && git clean -fdq && git reset -q --hard HEAD~1")
    await agent.turn()
    shown = (
        "exec git fsck --strict && git branch --show-current && git branch --format='%(refname:short)'"
        " && git log --format=%s && git status --short && cat shop.py"
    )
    done = await fork(caller, agent, shown, at_turn=1, count=2)
    for session in done["sessions"]:
        found = await ended(site, session)
        branch = f"oubliette/{session['workspace_id']}"
        lines = found["final_response"].replace("\\n", "\n")
        assert f"{branch}\n{branch}\ndearer\nthe first one\n M shop.py\n?? new\nprice = 3" in lines
        assert session["missing_count"] == 0
