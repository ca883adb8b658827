"""Limits, each refused by its name, and the idle timeout."""

from __future__ import annotations

import asyncio
import json
import os
import uuid

import pytest

from tests.callers import ToolFailed

pytestmark = pytest.mark.anyio

IDLE = 1.2
SETTINGS = {
    "sessions.max_live_per_project": 3,
    "sessions.max_queued_messages": 4,
    "sessions.idle_timeout_seconds": IDLE,
    "sessions.permission_timeout_seconds": 0.3,
    "callers.max_pending_requests": 5,
    "projects.max_workspaces": 5,
    "sessions.max_log_bytes": 2_000_000,
    "trees.max_log_bytes": 5_600_000,
}


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


async def spawn(site, caller, prompt, project=None, **more):
    project = project or await site.new_project()
    return await site.spawn(caller, prompt, project_id=project["id"], **more)


# ---------------------------------------------------------------- idle


@pytest.mark.whole
async def test_an_idle_session_times_out_and_can_be_resumed(site, caller):
    """It idled out: it was not ended, so a message wakes it up."""
    agent = await spawn(site, caller, "remember n 5")
    await agent.event("status", status="idle")
    out = await agent.event("status", status="timed_out")
    assert "idle" in out["reason"]
    assert (await agent.get())["status"] == "timed_out"
    async with asyncio.timeout(5):
        while site.server.agents(agent.session_id):
            await asyncio.sleep(0.05)
    answer = await agent.say("recall n")
    assert answer["resumed"]
    assert (await agent.event("completion", nth=2))["final_text"] == "5"


@pytest.mark.whole
async def test_any_event_counts_as_activity(site, caller):
    lines = "\n".join(f"sleep {IDLE / 2}\nsay {n}" for n in range(4))
    agent = await spawn(site, caller, lines)
    done = await agent.event("completion")
    assert (done["status"], done["final_text"]) == ("completed", "3")


@pytest.mark.whole
async def test_a_call_that_waits_for_its_caller_is_not_idle(site):
    """A session whose turn runs does not idle out under its caller."""
    async with site.caller("http-auto", tools={"wait": lambda: 1}, answers=False) as caller:
        await caller.listen()
        agent = await spawn(site, caller, "call myapp_wait {}")
        event = await caller.event("caller_tool_request")
        with pytest.raises(TimeoutError):
            await agent.event("status", status="timed_out", timeout=IDLE + 0.6)
        await caller.call(
            "caller_tool_response",
            session_id=agent.session_id,
            request_id=event["request_id"],
            result="in time",
        )
        assert (await agent.outcome())["text"] == "in time"


# ---------------------------------------------------------------- its log


@pytest.mark.whole
async def test_a_log_that_has_grown_to_its_limit_interrupts_its_turns(site, caller):
    """Only a cleanup makes it shorter: so does each further turn that writes much."""
    flood = "\n".join(["exec head -c 200000 /dev/zero | tr '\\0' a"] * 60)
    agent = await spawn(site, caller, flood + "\nsay not reached")
    told = await agent.event("error", limit="sessions.max_log_bytes")
    assert "go on in another session" in told["message"]
    assert (await agent.event("completion"))["status"] == "interrupted"
    await agent.say(flood)
    assert (await agent.event("completion", nth=2))["status"] == "interrupted"
    other = await spawn(site, caller, "say done")
    assert await other.turn() == ["done"]


@pytest.mark.whole
async def test_children_have_a_limit_of_events_together(site, caller):
    """Each of them writes less than a session may; the one that goes beyond is interrupted."""
    flood = "\n".join(["exec head -c 200000 /dev/zero | tr '\\0' a"] * 8)
    # The last one is still at it when the tree is known to be too large.
    messages = [f"{flood}\n{end}" for end in ("say all", "say all", "say all", "sleep 60")]
    calls = [f"call session_message {json.dumps({'message': each})}" for each in messages]
    agent = await spawn(site, caller, "\n".join(calls))
    await agent.event("completion")
    children = [site.agent(each) for each in (await agent.get())["child_session_ids"]]
    ends = [(await each.event("completion"))["status"] for each in children]
    assert ends == ["completed", "completed", "completed", "interrupted"]
    told = await children[-1].event("error", limit="trees.max_log_bytes")
    assert "go on in another tree" in told["message"]


# ---------------------------------------------------------------- per project


async def test_the_limit_of_live_sessions_is_named_and_an_end_makes_room(site, caller):
    """The limit of a project counts live top-level sessions."""
    project = await site.new_project()
    agents = [await spawn(site, caller, "sleep 30", project) for _ in range(3)]
    with pytest.raises(ToolFailed, match=r"max_live_per_project.*3"):
        await spawn(site, caller, "say no", project)
    elsewhere = await spawn(site, caller, "say yes")
    assert await elsewhere.turn() == ["yes"]
    await agents[0].end()
    more = await spawn(site, caller, "say room", project)
    assert await more.turn() == ["room"]


async def test_a_refused_session_leaves_no_workspace(site, caller):
    """By each tool that makes one: the refusal comes first."""
    project = await site.new_project()
    agents = [await spawn(site, caller, "sleep 30", project) for _ in range(3)]
    home = site.server.home_of(project["id"])
    folder = home / "projects" / project["id"] / "workspaces"
    kept = home / "config/projects" / project["id"] / "workspaces"
    here = {"project_id": project["id"]}

    async def there():
        listed = await caller.call("workspace_list", **here)
        return len(listed["workspaces"]), *(sorted(each.iterdir()) for each in (folder, kept))

    before = await there()
    new = {"create_workspace": True, "external_id": "grace"}
    for tool, more in (
        ("session_spawn", {"prompt": "say no"}),
        ("session_spawn", {"prompt": "say no", "workspace_id": str(uuid.uuid4())}),
        ("session_message", {"message": "say no"}),
    ):
        with pytest.raises(ToolFailed, match="max_live_per_project"):
            await caller.call(tool, **here, **new, **more)
    asked = caller.call("session_map", **here, **new, messages=["say no", "say no"])
    refused = (await asked)["results"]
    assert [each["status"] for each in refused] == ["refused"] * 2
    assert await there() == before
    await agents[0].end()
    made = await spawn(site, caller, "say room", project, **new)
    assert await made.turn() == ["room"]
    assert (await there())[0] == before[0] + 1


@pytest.mark.whole
async def test_a_project_has_a_limit_of_workspaces(site, caller):
    project = await site.new_project()
    for _ in range(4):
        agent = await spawn(site, caller, "say made", project, create_workspace=True)
        await agent.turn()
        await agent.end()
    home = site.server.home_of(project["id"])
    folder = home / "projects" / project["id"] / "workspaces"
    before = os.listdir(folder)
    with pytest.raises(ToolFailed, match=r"projects\.max_workspaces: .* 5 workspaces"):
        await spawn(site, caller, "say no", project, create_workspace=True)
    assert os.listdir(folder) == before
    used = await spawn(site, caller, "say used", project)
    assert await used.turn() == ["used"]


async def test_children_do_not_count_against_the_limit_of_the_project(site, caller):
    """So that a waiting parent never blocks its children."""
    project = await site.new_project()
    agents = [
        await spawn(site, caller, 'call session_message {"message": "say below"}', project)
        for _ in range(3)
    ]
    for agent in agents:
        assert (await agent.outcome())["structured"]["result"] == "below"


async def test_too_many_queued_messages_are_refused_by_the_limits_name(site, caller):
    """Bounded everywhere."""
    agent = await spawn(site, caller, "sleep 30")
    await agent.event("status", status="running")
    for n in range(4):
        await agent.say(f"say {n}")
    with pytest.raises(ToolFailed, match="max_queued_messages"):
        await agent.say("say one too many")


async def test_the_pending_calls_of_one_owner_are_limited_over_all_its_sessions(site):
    """Callers.max_pending_requests, for each principal; a settled one makes room."""
    three = "parallel\n" + "call myapp_wait {}\n" * 3 + "end"
    async with (
        site.caller("http-auto", tools={"wait": lambda: 1}, answers=False) as caller,
        site.caller("http-auto", tools={"wait": lambda: 1}) as other,
    ):
        await caller.listen()
        await other.listen()
        first = await spawn(site, caller, three)
        await first.event("caller_tool_request", nth=3)
        second = await spawn(site, caller, three)
        refused = await second.event("tool_result")
        assert refused["is_error"]
        assert "callers.max_pending_requests: 5" in refused["result"]
        elsewhere = await spawn(site, other, three)
        assert [each["is_error"] for each in await elsewhere.outcome()] == [False] * 3
        await first.end()
        third = await spawn(site, caller, three)
        await third.event("caller_tool_request", nth=3)


# ---------------------------------------------------------------- per tree

BELOW = 'call session_message {"message": %s}'


def nested(levels: int) -> str:
    prompt = "say bottom"
    for _ in range(levels):
        prompt = BELOW % json.dumps(prompt)
    return prompt


async def test_children_nest_as_deep_as_allowed(site, caller):
    """Recursive depth; the default is 3."""
    agent = await spawn(site, caller, nested(3))
    outcome = await agent.outcome()
    for _ in range(3):
        assert not outcome["is_error"]
        text = outcome["structured"]["result"]
        outcome = json.loads(text) if text != "bottom" else text
    assert outcome == "bottom"


async def test_a_child_too_deep_is_refused_with_an_error_that_names_the_depth(site, caller):
    """Depth is enforced with an error that names it."""
    project = await site.new_project(limits={"max_depth": 1})
    agent = await spawn(site, caller, nested(2), project)
    outcome = json.loads((await agent.outcome())["structured"]["result"])
    assert outcome["is_error"]
    assert "max_depth" in outcome["text"]
    assert "depth 2" in outcome["text"]
    assert "limit of this tree is 1 (set by the project)" in outcome["text"]
    listed = await caller.call("session_list", project_id=project["id"])
    assert [session["depth"] for session in listed["sessions"]] == [0, 1]


async def test_without_any_depth_there_are_no_children(site, caller):
    """Max_depth = 0."""
    project = await site.new_project(limits={"max_depth": 0})
    agent = await spawn(site, caller, nested(1), project)
    outcome = await agent.outcome()
    assert outcome["is_error"]
    assert "max_depth" in outcome["text"]


async def test_the_agents_of_a_tree_are_limited(site, caller):
    """Ended ones count too."""
    project = await site.new_project(limits={"max_agents": 3})
    agent = await spawn(site, caller, "\n".join([nested(1)] * 3), project)
    outcomes = [json.loads(text) for text in await agent.turn()]
    assert [outcome["is_error"] for outcome in outcomes] == [False, False, True]
    assert "max_agents" in outcomes[2]["text"]


async def test_the_agents_at_once_are_limited_and_a_waiting_parent_does_not_count(site, caller):
    project = await site.new_project(limits={"max_agents_at_once": 2})
    sleeper = BELOW % json.dumps("sleep 0.8")
    agent = await spawn(site, caller, f"parallel\n{sleeper}\n{sleeper}\n{sleeper}\nend", project)
    outcomes = await agent.outcome()
    refused = [outcome for outcome in outcomes if outcome["is_error"]]
    assert len(refused) == 1
    assert "max_agents_at_once" in refused[0]["text"]


async def test_the_cost_of_a_tree_is_limited(site, caller):
    """10 USD for each tree by default; here 1."""
    project = await site.new_project(limits={"max_cost_usd": 1.0})
    agent = await spawn(site, caller, f"usage 0.5 10\n{nested(1)}\nusage 0.6 10", project)
    assert not json.loads((await agent.turn())[1])["is_error"]
    agent.caller = caller
    outcome = await agent.ask(nested(1))
    assert outcome["is_error"]
    assert "max_cost_usd" in outcome["text"]
    session = await agent.get()
    assert session["usage"]["cost_usd"] == pytest.approx(1.1)


@pytest.mark.whole
async def test_the_age_of_a_tree_is_limited(site, caller):
    """Max_wall_seconds, from the start of its root. tests/faults/test_limits.py: more."""
    project = await site.new_project(limits={"max_wall_seconds": 2.0})
    agent = await spawn(site, caller, f"{nested(1)}\nsleep 20", project)
    await agent.event("status", status="timed_out")
    told = await agent.event("error", kind="limit")
    assert told["limit"] == "max_wall_seconds"
    assert "its time is over" in (await agent.get())["status_reason"]


@pytest.mark.parametrize(
    ("limit", "value", "prompt", "text"),
    [
        ("max_turn_seconds", 1.0, "say on\nsleep 30", "the turn has taken 1 seconds"),
        (
            "max_turn_steps",
            3,
            "\n".join(f"say {n}" for n in range(5)) + "\nsleep 30",
            "the turn has taken 3 steps of its model",
        ),
    ],
)
async def test_a_turn_has_an_end_of_its_own(site, caller, limit, value, prompt, text):
    """It is interrupted and fails by the name of the limit; the session goes on."""
    project = await site.new_project(limits={limit: value})
    agent = await spawn(site, caller, prompt, project)
    done = await agent.event("completion")
    assert done["status"] == "failed"
    assert done["final_text"] == f"{text}, as many as it may ({limit} of its project)"
    told = await agent.event("error", kind="limit")
    assert (told["limit"], told["message"], told["turn"]) == (limit, done["final_text"], 1)
    assert (await agent.get())["status"] == "idle"
    await agent.say("say again")
    done = await agent.event("completion", nth=2)
    assert (done["status"], done["final_text"]) == ("completed", "again")


async def test_limits_are_told_with_their_sources_and_what_is_left(site, caller):
    """Config_limits; frozen into a session at its spawn."""
    project = await site.new_project(limits={"max_depth": 2})
    told = await caller.call("config_limits", project_id=project["id"])
    depth = told["limits"]["max_depth"]
    assert (depth["value"], depth["source"]) == (2, "project")
    assert told["limits"]["max_agents"]["source"] == "configuration"
    assert told["limits"]["max_live_sessions"] == {
        "value": 3,
        "source": "configuration",
        "used": 0,
        "left": 3,
    }
    agent = await spawn(site, caller, nested(1), project)
    await agent.turn()
    child = (await agent.get())["child_session_ids"][0]
    told = await caller.call("config_limits", session_id=child)
    assert (told["depth"], told["remaining_depth"]) == (1, 1)
    assert told["limits"]["max_agents"]["used"] == 2


async def test_a_permission_that_nobody_gives_is_denied_at_its_deadline(site, caller):
    """`ask` raises the event and is denied at its deadline for now."""
    agent = await spawn(site, caller, "ask may I?")
    settled = await agent.event("permission_settled")
    assert settled["decision"] == "deny"
    assert await agent.turn() == ["deny"]
