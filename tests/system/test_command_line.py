"""The commands for projects, workspaces and sessions, as a person gives them to a running server."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.system.site import TURN

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.mark.whole
async def test_a_project_is_created_used_and_deleted(site, oubliette):
    made = await oubliette("project", "create", "by hand", "--no-git", "--description", "d")
    assert (made.code, made.err) == (0, "Project by hand was created.\n")
    project = made.out.strip()
    found = await site.eyes.call("project_get", project_id=project)
    assert (found["name"], found["description"]) == ("by hand", "d")

    there = await oubliette("workspace", "list", "by hand", "-o", "json")
    (default,) = there.json["workspaces"]
    assert default["is_default"]
    refused = await oubliette("workspace", "delete", "by hand", default["id"])
    assert refused.code == 1
    assert "default" in refused.err
    listed = await oubliette("workspace", "list", project)
    assert listed.out.splitlines()[1].split("\t")[:2] == [default["id"], "yes"]

    gone = await oubliette("project", "delete", "by hand")
    assert (gone.code, gone.err) == (0, f"by hand ({project}) was deleted.\n")
    assert (await oubliette("project", "delete", project)).code == 3


async def test_a_prompt_is_followed_to_the_end_of_its_turn(site, oubliette):
    project = site.project["id"]
    done = await oubliette("session", "spawn", project, "-", "--follow", stdin="say one\nsay two\n")
    assert done.code == 0
    assert done.out == "two\n"  # a pipe gets the answer alone
    first, *transcript = done.err.splitlines()
    assert transcript[:4] == ["> say one", "> say two", "one", "two"]
    assert transcript[4].startswith("done · ")
    session = first.partition(":")[0]
    agent = site.agent(session)

    shown = await oubliette("session", "show", session)
    assert "last_prompt:\n  say one\n  say two\n" in shown.out
    assert "waiting: It waits for a message, since " in shown.out

    said = await oubliette("session", "message", session, "fail too bad", "--follow", "-o", "json")
    assert said.code == 1  # the turn failed
    first, *events = [json.loads(line) for line in said.out.splitlines()]
    assert (first["session_id"], first["spawned"]) == (session, False)
    assert events[-1]["session_id"] == session
    assert [event["status"] for event in events if event["type"] == "completion"] == ["failed"]
    await agent.end()


async def test_events_of_all_sessions_are_waited_for(site):
    """What `oubliette logs --follow` and `oubliette top` do on a server."""
    begin = (await site.eyes.call("event_list"))["next"]
    wanted = {"after": begin, "types": ["message"], "wait_seconds": TURN}
    async with asyncio.timeout(TURN):
        waiting = asyncio.create_task(site.eyes.call("event_list", **wanted))
        made = await site.eyes.call(
            "session_spawn", project_id=site.project["id"], prompt="say I speak", new_session=True
        )
        (event,) = (await waiting)["events"]
    assert (event["session_id"], event["text"]) == (made["session_id"], "I speak")
    await site.agent(made["session_id"]).end()


async def test_a_turn_is_interrupted(site, oubliette):
    made = await oubliette("session", "spawn", site.project["id"], "sleep 600", "--new")
    session = made.out.strip()
    agent = site.agent(session)
    await agent.event("status", status="running")
    await agent.event("system", kind="ready")
    told = await oubliette("session", "interrupt", session, "-o", "json")
    assert told.json["session_id"] == session
    assert (await agent.event("completion"))["status"] == "interrupted"


@pytest.mark.whole
async def test_all_that_lives_is_ended(site, oubliette):
    """A session of this command line, one of somebody else with a child, and one at rest."""
    async with site.caller("http-auto") as caller:
        rests = await site.spawn(caller, "say hello", new_session=True)
        await rests.turn()
        await caller.call("session_end", session_id=rests.session_id)
        await caller.listen()
        call = json.dumps({"message": "ask may I?"})
        parent = await site.spawn(caller, f"call session_message {call}", new_session=True)
        child = (await caller.event("permission_request"))["session_id"]
        made = await oubliette("session", "spawn", site.project["id"], "sleep 600", "--new")
        own = made.out.strip()
        living = {parent.session_id, child, own}
        ended = await oubliette("session", "end", "--all", "--project", site.project["id"])
        assert (ended.code, ended.err) == (0, "2 sessions were ended, with their children.\n")
        for session in living:
            shown = await site.eyes.call("session_get", session_id=session)
            assert shown["status"] == "completed", shown
        again = await oubliette("session", "end", "--all", "-o", "json")
        assert (again.code, again.json) == (0, {"ended": []})


@pytest.mark.parametrize("words", [(), ("3k9x", "--all"), ("3k9x", "--project", "p")])
async def test_what_is_to_be_ended_is_said_in_one_way(oubliette, words):
    refused = await oubliette("session", "end", *words)
    assert refused.code == 2
    assert "--all" in refused.err


async def test_a_session_of_somebody_else_is_shown_and_not_spoken_to(site, oubliette):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say hello")
        await agent.turn()
        refused = await oubliette("session", "message", agent.session_id, "say more")
        assert (refused.code, refused.out) == (4, "")
        assert "belongs to another principal" in refused.err
        missing = await oubliette("session", "message", "gogol_" + "0" * 26, "say more")
        assert missing.code == 3


async def test_why_tells_who_waits_on_whom_down_to_a_person(site, oubliette):
    async with site.caller("http-auto") as caller:
        await caller.listen()
        call = json.dumps({"message": "ask may I?"})
        agent = await site.spawn(caller, f"call session_message {call}")
        asked = await caller.event("permission_request")
        child = asked["session_id"]

        told = (await oubliette("session", "why", agent.session_id, "-o", "json")).json
        (wait,) = told["waiting"]
        assert (told["status"], wait["kind"], wait["session_id"]) == ("running", "child", child)
        (deep,) = wait["session"]["waiting"]
        assert (deep["kind"], deep["caller_present"]) == ("permission", True)
        assert deep["until"] == asked["deadline"]

        lines = (await oubliette("session", "why", agent.session_id)).out.splitlines()
        assert lines[0] == f"{agent.session_id} is running."
        assert lines[1].startswith(f"  It waits for its child {child}, since 20")
        assert lines[2] == f"    {child} is running."
        assert lines[3].startswith("      It waits for a decision on may I?, since 20")
        assert lines[3].endswith(" left).")
        assert lines[4].startswith("        caller myapp is connected; permission_response")
        assert len(lines) == 5


async def test_tree_shows_who_works_below_whom_and_how_much_of_the_limits_is_used(site, oubliette):
    async with site.caller("http-auto") as caller:
        await caller.listen()
        call = json.dumps({"message": "ask may I?"})
        agent = await site.spawn(caller, f"call session_message {call}")
        child = (await caller.event("permission_request"))["session_id"]

        shown = await oubliette("tree", child)
        head, root, below, _, limits, *rows = shown.out.splitlines()
        assert head.split() == ["SESSION", "STATUS", "AGENT", "COST", "WAITS", "FOR", "TITLE"]
        assert root.startswith(agent.session_id)
        assert "\ta child\t" in root
        assert below.startswith(f"  {child}")
        assert "a decision on may I?" in below
        assert limits.split() == ["LIMIT", "USED", "OF", "SET", "BY"]
        used = {row.split()[0]: row.split()[1:3] for row in rows}
        assert used["max_agents_at_once"] == ["2", "10"]

        listed = (await oubliette("ps", "-o", "json")).json["sessions"]
        mine = {agent.session_id, child}
        assert [each["session_id"] for each in listed if each["session_id"] in mine] == [
            child,
            agent.session_id,
        ]
        rows = {row.split("\t")[0]: row for row in (await oubliette("ps")).out.splitlines()}
        assert rows[child].split("\t")[6] == "a decision on may I?"

        told = (await oubliette("tree", agent.session_id, "-o", "json")).json
        assert [each["session_id"] for each in told["rows"]] == [agent.session_id, child]
        assert told["limits"].keys() >= used.keys()


async def test_usage_has_what_an_agent_reports_and_the_turns_that_have_ended(site, oubliette):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "usage 0.5 100")
        await agent.turn()
        await agent.end()
    told = (await oubliette("usage", "--by", "session", "-o", "json")).json
    (mine,) = [each for each in told["rows"] if each["key"] == agent.session_id]
    assert {name: mine[name] for name in told["total"]} == {
        "input_tokens": 100,
        "output_tokens": None,
        "measured_cost_usd": None,
        "reported_cost_usd": 0.5,
        "turns": 1,
    }
    assert mine["name"] == "usage 0.5 100"


async def test_why_of_a_session_that_ended(site, oubliette):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say hello")
        await agent.turn()
        await agent.end()
    lines = (await oubliette("session", "why", agent.session_id)).out.splitlines()
    assert lines[0] == f"{agent.session_id} is completed."
    assert lines[1].startswith("  It has completed (")


async def test_any_tool_is_called(site, oubliette):
    done = await oubliette("call", "project_get", f"project_id={site.project['id']}", "-o", "json")
    assert done.json["name"] == "shared"
    refused = await oubliette("call", "project_get", "project_id=x", "-o", "json")
    assert (refused.code, refused.out) == (2, "")
    assert json.loads(refused.err)["error"]["code"] == "invalid_parameter"
