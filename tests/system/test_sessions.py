"""The life of a session."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.callers import ToolFailed
from tests.own_time import OwnTime

pytestmark = pytest.mark.anyio


@pytest.fixture
async def caller(site):
    """Somebody with a project of their own."""
    async with site.caller("http-auto") as caller:
        yield caller


@pytest.fixture
async def project(site):
    return (await site.new_project())["id"]


async def spawn(site, caller, project, prompt, **more):
    """session_spawn as it is, without `new_session`; its answer and the session."""
    answer = await caller.call("session_spawn", project_id=project, prompt=prompt, **more)
    return answer, site.agent(answer["session_id"], caller)


async def crashed(agent):
    """Have the agent's process end, so that the session rests without having been ended."""
    await agent.say("crash 3")
    await agent.event("status", status="failed")


# ---------------------------------------------------------------- resume


async def test_a_second_spawn_goes_on_with_the_live_session(site, caller, project):
    first, agent = await spawn(site, caller, project, "remember colour green")
    assert (first["spawned"], first["resumed"]) == (True, False)
    await agent.turn()
    second, _ = await spawn(site, caller, project, "recall colour")
    assert second["session_id"] == first["session_id"]
    assert (second["spawned"], second["resumed"]) == (False, False)
    assert await agent.turn() == ["green"]


async def test_a_session_that_rests_is_resumed_with_its_memory(site, caller, project):
    """Through the agent's own resume; its log goes on."""
    _, agent = await spawn(site, caller, project, "remember colour green")
    await agent.turn()
    await crashed(agent)
    before = len(agent.log)
    again, _ = await spawn(site, caller, project, "recall colour")
    assert again["session_id"] == agent.session_id
    assert (again["spawned"], again["resumed"]) == (False, True)
    done = await agent.event("completion", nth=3)  # after that of the turn that was cut off
    assert done["final_text"] == "green"
    assert [event["index"] for event in agent.log] == list(range(len(agent.log)))
    assert agent.log[before]["index"] == again["last_index"]
    assert (await agent.get())["status"] in {"idle", "running"}


async def test_session_message_to_a_resting_session_resumes_it(site, caller, project):
    _, agent = await spawn(site, caller, project, "remember n 1")
    await agent.turn()
    await crashed(agent)
    answer = await agent.say("recall n")
    assert (answer["resumed"], answer["spawned"]) == (True, False)
    assert (await agent.event("completion", nth=3))["final_text"] == "1"


async def test_an_ended_session_is_not_resumed(site, caller, project):
    """Sessions ended by session_end stay ended."""
    first, agent = await spawn(site, caller, project, "say once")
    await agent.turn()
    await agent.end()
    with pytest.raises(ToolFailed, match="was ended"):
        await agent.say("say more")
    second, _ = await spawn(site, caller, project, "say again")
    assert second["spawned"]
    assert second["session_id"] != first["session_id"]


async def test_a_resting_session_that_is_ended_then_is_not_resumed(site, caller, project):
    """Session_end counts for one that rests, too."""
    first, agent = await spawn(site, caller, project, "say once")
    await agent.turn()
    await crashed(agent)
    await agent.end()
    second, _ = await spawn(site, caller, project, "say again")
    assert second["session_id"] != first["session_id"]


async def test_new_session_always_spawns(site, caller, project):
    first, _ = await spawn(site, caller, project, "say one")
    second, _ = await spawn(site, caller, project, "say two", new_session=True)
    assert second["spawned"]
    assert first["session_id"] != second["session_id"]
    third, _ = await spawn(site, caller, project, "say three")
    assert third["session_id"] == second["session_id"]  # the latest one


async def test_the_session_of_somebody_else_is_not_resumed(site, caller, project):
    """The same principal's only."""
    first, _ = await spawn(site, caller, project, "say one")
    async with site.caller("http-auto") as other:
        second, _ = await spawn(site, other, project, "say two")
    assert second["spawned"]
    assert first["session_id"] != second["session_id"]


async def test_each_workspace_has_its_own_latest_session(site, caller, project):
    """The same workspace's only."""
    first, _ = await spawn(site, caller, project, "say one")
    second, _ = await spawn(site, caller, project, "say two", create_workspace=True)
    assert second["spawned"]
    third, _ = await spawn(site, caller, project, "x", workspace_id=second["workspace_id"])
    assert third["session_id"] == second["session_id"]
    fourth, _ = await spawn(site, caller, project, "x")
    assert fourth["session_id"] == first["session_id"]


# ---------------------------------------------------------------- turns


async def test_messages_are_queued_while_a_turn_runs_and_run_in_order(site, caller, project):
    """Follow-ups."""
    _, agent = await spawn(site, caller, project, "sleep 0.4\nsay first")
    await agent.event("status", status="running")
    for n in range(5):
        await agent.say(f"say follow-up {n}")
    assert (await agent.turn())[-1] == "first"
    assert [(await agent.turn())[-1] for _ in range(5)] == [f"follow-up {n}" for n in range(5)]
    session = await agent.get()
    assert session["turn_count"] == 6
    assert session["final_response"] == "follow-up 4"
    assert session["last_prompt"] == "say follow-up 4"


async def test_an_interrupt_ends_the_turn_and_what_is_queued_runs(site, caller, project):
    _, agent = await spawn(site, caller, project, "sleep 60")
    await agent.event("status", status="running")
    await agent.say("say next")
    own = OwnTime()
    answer = await caller.call("session_interrupt", session_id=agent.session_id)
    assert answer["session_id"] == agent.session_id
    done = await agent.event("completion")
    assert done["status"] == "interrupted"
    assert own.seconds() < 5
    assert (await agent.event("completion", nth=2))["final_text"] == "next"


async def test_with_nothing_to_interrupt_an_interrupt_is_no_error(site, caller, project):
    _, agent = await spawn(site, caller, project, "say done")
    await agent.turn()
    await agent.event("status", status="idle")
    answer = await caller.call("session_interrupt", session_id=agent.session_id)
    assert answer["status"] == "idle"
    await agent.end()
    answer = await caller.call("session_interrupt", session_id=agent.session_id)
    assert answer["status"] == "completed"


async def test_an_error_of_the_agent_ends_its_turn_and_not_the_session(site, caller, project):
    """`completed` is the turn, `failed` the session."""
    _, agent = await spawn(site, caller, project, "fail so be it")
    await agent.event("completion")
    await agent.event("status", status="idle")
    page = await caller.call("session_events", session_id=agent.session_id)
    assert (page["completed"], page["failed"]) == (True, False)
    assert page["error"]
    await agent.say("say still here")
    assert (await agent.event("completion", nth=2))["final_text"] == "still here"


async def test_a_crash_of_the_agent_fails_the_session_with_the_exit_code(site, caller, project):
    """What cannot go on is failed with a reason."""
    _, agent = await spawn(site, caller, project, "crash 7")
    await agent.event("status", status="failed")
    error = await agent.event("error")
    assert error["exit_code"] == 7
    page = await caller.call("session_events", session_id=agent.session_id)
    assert page["failed"]
    assert page["error"]
    session = await agent.get()
    assert (session["status"], session["ended_at"] is not None) == ("failed", True)


async def test_queued_messages_of_a_session_that_fails_are_answered_for(site, caller, project):
    """Nothing is lost in silence: what did not run says so in the log."""
    _, agent = await spawn(site, caller, project, "sleep 0.3\ncrash 3")
    await agent.event("status", status="running")
    await agent.say("say never")
    await agent.event("status", status="failed")
    assert await agent.event("error", kind="not_run", turn=2)
    page = await caller.call("session_events", session_id=agent.session_id)
    assert page["completed"]


# ---------------------------------------------------------------- the end


async def test_ending_a_session_kills_its_agent_within_five_seconds(site, caller, project):
    """Interrupts, at most 5 s, kills the group, frees the slot."""
    _, agent = await spawn(site, caller, project, "exec trap '' TERM; sleep 300")
    await agent.event("status", status="running")
    async with asyncio.timeout(5):
        while not site.server.agents(agent.session_id):
            await agent.read(wait=0.05)
    own = OwnTime()
    answer = await caller.call("session_end", session_id=agent.session_id)
    assert answer["status"] == "completed"
    assert own.seconds() < 6
    assert site.server.agents(agent.session_id) == []
    session = await agent.get()
    assert session["status"] == "completed"
    assert session["status_reason"] == "session_end"


async def test_a_session_that_is_ended_while_its_agent_starts_is_not_waited_for(
    site, caller, project
):
    """The agent is told as soon as there is one; 3 s are for one that does not heed."""

    async def once(n: int) -> float:
        _, agent = await spawn(site, caller, project, "say on", new_session=True)
        await asyncio.sleep(n * 0.003)
        began = time.monotonic()
        await agent.end()
        assert site.server.agents(agent.session_id) == []
        return time.monotonic() - began

    took = [await once(n) for n in range(16)]
    assert max(took) < 2, took


async def test_ending_a_session_twice_is_no_error(site, caller, project):
    _, agent = await spawn(site, caller, project, "say done")
    await agent.turn()
    first, second = await asyncio.gather(agent.end(), agent.end())
    third = await agent.end()
    assert first == second == third


async def test_ending_a_tree_ends_the_children(site, caller, project):
    """`tree`."""
    _, agent = await spawn(site, caller, project, 'call session_message {"message": "sleep 60"}')
    async with asyncio.timeout(10):
        while not (children := (await agent.get())["child_session_ids"]):
            await agent.read(wait=0.1)
    child = site.agent(children[0])
    await child.event("status", status="running")
    await agent.end(tree=True)
    assert (await agent.get())["status"] == "completed"
    assert (await child.get())["status"] == "completed"
    assert site.server.agents(child.session_id) == []


# ---------------------------------------------------------------- who may


async def test_only_the_owner_converses_and_scope_decides_who_sees_and_ends(site, caller, project):
    _, agent = await spawn(site, caller, project, "say mine")
    await agent.turn()
    async with site.caller("http-auto") as other:
        with pytest.raises(ToolFailed, match="not found"):
            await other.call("session_message", session_id=agent.session_id, message="say yours")
        seen = await other.call("session_get", session_id=agent.session_id)
        assert seen["final_response"] == "mine"
        page = await other.call("session_events", session_id=agent.session_id)
        assert page["completed"]
        ended = await other.call("session_end", session_id=agent.session_id)
        assert ended["status"] == "completed"


async def test_a_key_of_another_project_finds_nothing(site, caller, project):
    """The project is taken from the record; `not found` for what is out of reach."""
    _, agent = await spawn(site, caller, project, "say mine")
    elsewhere = await site.new_project()
    token = site.server.token(f"project:{elsewhere['id']}")
    async with site.caller("http-auto", token=token) as other:
        for tool in ("session_get", "session_events", "session_end", "session_interrupt"):
            with pytest.raises(ToolFailed, match="not found"):
                await other.call(tool, session_id=agent.session_id)
        with pytest.raises(ToolFailed, match="not found"):
            await other.call("session_spawn", project_id=project, prompt="say hi")
        listed = await other.call("project_list")
        assert [each["id"] for each in listed["projects"]] == [elsewhere["id"]]


# ---------------------------------------------------------------- again


async def test_an_idempotency_key_never_buys_a_second_agent(site, caller, project):
    """Unique for each principal; other arguments are refused."""
    first, agent = await spawn(site, caller, project, "say once", idempotency_key="k1")
    answers = await asyncio.gather(
        *(
            caller.call(
                "session_spawn", project_id=project, prompt="say once", idempotency_key="k1"
            )
            for _ in range(5)
        )
    )
    assert {answer["session_id"] for answer in answers} == {first["session_id"]}
    await agent.turn()
    assert (await agent.get())["turn_count"] == 1
    with pytest.raises(ToolFailed, match="idempotency_key"):
        await caller.call(
            "session_spawn", project_id=project, prompt="say twice", idempotency_key="k1"
        )
    async with site.caller("http-auto") as other:
        elses, _ = await spawn(site, other, project, "say once", idempotency_key="k1")
        assert elses["session_id"] != first["session_id"]


async def test_an_idempotency_key_counts_for_messages_too(site, caller, project):
    _, agent = await spawn(site, caller, project, "say one")
    await agent.turn()
    answers = [await agent.say("say two", idempotency_key="m1") for _ in range(3)]
    assert {answer["turn"] for answer in answers} == {2}
    assert await agent.turn() == ["two"]
    await agent.say("say three")
    assert await agent.turn() == ["three"]
    assert (await agent.get())["turn_count"] == 3


# ---------------------------------------------------------------- reading


async def test_last_index_of_a_message_is_where_to_read_on(site, caller, project):
    """Cursors are exclusive, and what follows the message is read behind it."""
    _, agent = await spawn(site, caller, project, "say one")
    await agent.turn()
    answer = await agent.say("say two")
    await agent.turn()
    page = await caller.call(
        "session_events", session_id=agent.session_id, since_index=answer["last_index"]
    )
    assert [e["text"] for e in page["events"] if e["type"] == "message"] == ["two"]
    assert page["events"][0]["index"] == answer["last_index"] + 1


async def test_a_log_is_read_in_pages_without_gap_or_repeat(site, caller, project):
    """`more`, `last_index`, `since_index`."""
    _, agent = await spawn(site, caller, project, "emit 500")
    await agent.turn()
    last, indexes, pages = -1, [], 0
    while True:
        page = await caller.call(
            "session_events", session_id=agent.session_id, since_index=last, max_events=37
        )
        indexes += [event["index"] for event in page["events"]]
        last, pages = page["last_index"], pages + 1
        if not page["more"]:
            break
        assert not page["completed"]
    assert indexes == list(range(len(indexes)))
    assert len(indexes) > 500
    assert pages > 10
    assert page["completed"]


async def test_the_events_of_children_are_read_in_the_order_of_the_log(site, caller, project):
    """Include_children; since_index counts in seq then."""
    prompt = 'call session_message {"message": "say below"}\nsay above'
    _, agent = await spawn(site, caller, project, prompt)
    await agent.turn()
    page = await caller.call(
        "session_events", session_id=agent.session_id, include_children=True, max_events=1000
    )
    seqs = [event["seq"] for event in page["events"]]
    assert seqs == sorted(seqs)
    said = [e["text"] for e in page["events"] if e["type"] == "message"]
    assert said[0] == "below"
    assert said[-1] == "above"
    assert json.loads(said[1])["structured"]["result"] == "below"


async def test_sessions_are_listed_with_their_children(site, caller, project):
    """Every child is a full session."""
    _, agent = await spawn(site, caller, project, 'call session_message {"message": "say hi"}')
    await agent.turn()
    listed = await caller.call("session_list", project_id=project)
    root, child = listed["sessions"]
    assert root["session_id"] == agent.session_id
    assert root["child_session_ids"] == [child["session_id"]]
    assert child["parent_session_id"] == root["session_id"]
    assert (root["depth"], child["depth"]) == (0, 1)
    assert root["exploration_id"] == child["exploration_id"]
    assert child["workspace_id"] == root["workspace_id"]
    idle = await caller.call("session_list", project_id=project, status="completed")
    assert idle["sessions"] == []


async def test_a_permission_is_denied_at_its_deadline(site, caller, project):
    """`ask` raises the event and is denied at its deadline for now."""
    _, agent = await spawn(site, caller, project, "ask may I?")
    asked = await agent.event("permission_request")
    assert asked["text"] == "may I?"
    assert asked["ancestry"] == [agent.session_id]
    assert asked["deadline"] > asked["ts"]


# ---------------------------------------------------------------- at the same time


async def test_spawns_at_the_same_time_meet_in_one_session(site, caller, project):
    """Whoever is second resumes what the first has started."""
    answers = await asyncio.gather(
        *(
            caller.call("session_spawn", project_id=project, prompt=f"say number {n}")
            for n in range(6)
        )
    )
    assert len({answer["session_id"] for answer in answers}) == 1
    assert sorted(answer["spawned"] for answer in answers) == [False] * 5 + [True]
    agent = site.agent(answers[0]["session_id"], caller)
    said = [(await agent.turn())[-1] for _ in range(6)]
    assert sorted(said) == [f"number {n}" for n in range(6)]


async def test_a_message_and_an_end_at_the_same_time_both_get_an_answer(site, caller, project):
    """Nothing hangs: the message is refused, or its turn is answered for in the log."""
    for n in range(8):
        _, agent = await spawn(site, caller, project, "say one", new_session=True)
        await agent.turn()

        async def late(agent=agent, n=n):
            await asyncio.sleep(n * 0.002)
            return await agent.say("say two")

        async with asyncio.timeout(10):
            _, said = await asyncio.gather(agent.end(), late(), return_exceptions=True)
        if isinstance(said, ToolFailed):
            assert "session" in str(said)
        else:
            assert said["session_id"] == agent.session_id
        async with asyncio.timeout(10):
            page = await agent.read()
            while not page["completed"]:
                page = await agent.read(wait=5)


async def test_many_messages_at_the_same_time_are_each_run_once(site, caller, project):
    """Nothing is lost and nothing doubled in the queue."""
    _, agent = await spawn(site, caller, project, "say begin")
    await asyncio.gather(*(agent.say(f"say m{n}") for n in range(30)))
    said = [(await agent.turn())[-1] for _ in range(31)]
    assert said[0] == "begin"
    assert sorted(said[1:]) == sorted(f"m{n}" for n in range(30))
