"""What agents ask permission for, from the event to the decision."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from oubliette.runtime.containers.process import procfs
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, ToolFailed
from tests.system.conftest import ROOMY

pytestmark = pytest.mark.anyio

CLOSED = "request not found or already resolved"


def below(prompt: str) -> str:
    return f"call session_message {json.dumps({'message': prompt})}"


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        await caller.listen()
        yield caller


# ---------------------------------------------------------------- the decision


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_decision_reaches_the_agent(site, kind, decision):
    async with site.caller(kind, decide=lambda _: decision) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "ask may I?")
        assert await agent.turn() == [decision]
        asked = caller.of("permission_request")[0]
        settled = await caller.event("permission_settled")
        assert (asked["text"], asked["asks_for"]) == ("may I?", "may I?")
        assert asked["ancestry"] == [agent.session_id] == [asked["session_id"]]
        assert 59 < asked["deadline"] - asked["ts"] < 61
        assert settled["request_id"] == asked["request_id"]
        assert (settled["decision"], settled["reason"]) == (decision, "the caller decided")
        assert settled["index"] < (await agent.event("completion"))["index"]


async def test_with_autonomy_off_an_agent_is_allowed_what_it_asks_for(site, caller):
    """Also its children; nobody is asked, and the log has each decision."""
    script = f"{below('ask from below')}\nask may I?"
    agent = await site.spawn(caller, script, autonomy="off")
    await agent.turn()
    given = [
        (event["text"], event["decision"], event["reason"])
        for event in caller.events
        if event.get("kind") == "permission"
    ]
    reason = "the autonomy of the session is off"
    assert given == [("from below", "allow", reason), ("may I?", "allow", reason)]
    assert caller.of("permission_request") == []


async def test_a_nested_session_asks_the_caller_of_the_root(site, caller):
    """With its ancestry; the answer goes to the session that asked."""
    caller.decide = lambda _: "allow"
    agent = await site.spawn(caller, below(f"{below('ask from two below')}\nask from below"))
    outcome = await agent.outcome()
    assert not outcome["is_error"], outcome
    deep, middle = caller.of("permission_request")
    child = outcome["structured"]["session_id"]
    assert (deep["text"], middle["text"]) == ("from two below", "from below")
    assert middle["ancestry"] == [agent.session_id, child]
    assert deep["ancestry"] == [agent.session_id, child, deep["session_id"]]
    assert outcome["structured"]["result"] == "allow"


async def test_what_an_agent_started_with_its_own_key_asks_the_caller_of_the_root(site, caller):
    """It belongs to another principal, `session:<id>`, which nobody can answer as."""
    spawn = json.dumps({"project_id": site.project["id"], "prompt": "ask for a key's sake"})
    agent = await site.spawn(caller, f"call oubliette_session_spawn {spawn}", api_key_scope="write")
    outcome = await agent.outcome()
    asked = await caller.event("permission_request")
    assert asked["ancestry"] == [agent.session_id, outcome["structured"]["session_id"]]
    assert await caller.permit(asked) == {"accepted": True}
    child = site.agent(asked["session_id"])
    assert await child.turn() == ["allow"]
    settled = await caller.event("permission_settled")
    assert settled["session_id"] == asked["session_id"]


async def test_the_caller_of_the_root_is_the_one_of_now(site, caller):
    """A root that somebody else talks to by now: its children's questions go there."""
    agent = await site.spawn(caller, below("sleep 1\nask who decides?"))
    await agent.event("tool_call")
    token = caller.http.headers["Authorization"].removeprefix("Bearer ")
    async with site.caller("http-auto", token=token, caller_id="second") as second:
        await second.listen()
        await second.call(
            "session_message",
            session_id=agent.session_id,
            message="say later",
            context=second.context,
        )
        asked = await second.event("permission_request", timeout=20)
        await second.permit(asked)
        assert (await agent.outcome())["structured"]["result"] == "allow"
        assert not caller.of("permission_request")


# ---------------------------------------------------------------- for the session


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_decision_for_the_session_is_asked_for_once(site, caller, decision):
    agent = await site.spawn(caller, "ask to write\nask to write\nask to read")
    asked = await caller.event("permission_request", asks_for="to write")
    await caller.permit(asked, decision, remember="session")
    other = await caller.event("permission_request", asks_for="to read")
    await caller.permit(other, "allow")
    assert await agent.turn() == [decision, decision, "allow"]
    assert len(caller.of("permission_request")) == 2
    noted = await agent.event("system", kind="permission")
    assert (noted["decision"], noted["asks_for"]) == (decision, "to write")
    assert noted["reason"] == "decided before, for the session"


async def test_a_decision_for_the_session_holds_in_later_turns_and_not_in_others(site, caller):
    agent = await site.spawn(caller, "ask to write")
    await caller.permit(await caller.event("permission_request"), remember="session")
    assert await agent.turn() == ["allow"]
    await agent.say("ask to write")
    assert await agent.turn() == ["allow"]
    other = await site.spawn(caller, "ask to write")
    asked = await caller.event("permission_request", session_id=other.session_id)
    await caller.permit(asked, "deny")
    assert await other.turn() == ["deny"]


async def test_a_decision_for_once_is_asked_for_again(site, caller):
    caller.decide = lambda _: {"decision": "allow", "remember": "once"}
    agent = await site.spawn(caller, "ask to write\nask to write")
    assert await agent.turn() == ["allow", "allow"]
    assert len(caller.of("permission_request")) == 2


# ---------------------------------------------------------------- who may, and how often


async def test_a_second_answer_finds_nothing_open(site, caller):
    agent = await site.spawn(caller, "ask may I?")
    asked = await caller.event("permission_request")
    answers = await asyncio.gather(
        *(caller.permit(asked, decision) for decision in ["allow", "deny"] * 4),
        return_exceptions=True,
    )
    assert [answer for answer in answers if answer == {"accepted": True}] == [{"accepted": True}]
    refused = [str(answer) for answer in answers if isinstance(answer, ToolFailed)]
    assert refused == [CLOSED] * 7
    settled = await caller.event("permission_settled")
    assert await agent.turn() == [settled["decision"]]
    with pytest.raises(ToolFailed, match=CLOSED):
        await caller.permit(asked)
    assert len(caller.of("permission_settled")) == 1
    assert '"answer": "permission response"' in site.server.log()
    assert "request not open" in site.server.log()


async def test_a_stranger_decides_nothing(site, caller):
    """One answer for what is not there and for what is somebody else's."""
    agent = await site.spawn(caller, "ask may I?")
    asked = await caller.event("permission_request")
    async with site.caller("http-auto", token=site.principal("write")) as stranger:
        with pytest.raises(ToolFailed, match=CLOSED):
            await stranger.permit(asked)
    bound = (await site.new_project())["id"]
    reader = site.server.token("read")
    async with site.caller("http-auto", token=reader) as other:
        with pytest.raises(ToolFailed, match="tool not allowed"):
            await other.permit(asked)
    async with site.caller("http-auto", token=site.principal(f"project:{bound}")) as other:
        with pytest.raises(ToolFailed, match=CLOSED):
            await other.permit(asked)
    await caller.permit(asked, "deny")
    assert await agent.turn() == ["deny"]


async def test_an_admin_and_with_team_a_key_that_writes_decide_and_are_named(site, caller):
    shared = (await site.new_project(answers="team"))["id"]
    for scope, project in (("admin", site.project["id"]), (f"project:{shared}", shared)):
        token = site.server.token(scope, principal=f"helps-{project}")
        async with site.caller("http-auto", token=token) as other:
            agent = await site.spawn(caller, f"ask {project}", project_id=project)
            asked = await caller.event("permission_request", text=project)
            await other.permit(asked)
            assert await agent.turn() == ["allow"]
            settled = await caller.event("permission_settled", request_id=asked["request_id"])
            assert settled["by"] == f"helps-{project}"
            assert settled["reason"] == "another person who may decide did"


async def test_a_key_of_the_roots_project_decides_nothing_below_it_in_another(site):
    """The root's caller neither hears nor answers what its key does not reach; a wider key does."""
    mine, other = await site.new_project(), await site.new_project()
    owner = "spans-two"
    wide = site.server.token("write", principal=owner)
    bound = site.server.token(f"project:{mine['id']}", principal=owner)
    spawn = json.dumps({"project_id": other["id"], "prompt": "ask may I?"})
    async with (
        site.caller("http-auto", token=wide) as caller,
        site.caller("http-auto", token=bound) as narrow,
    ):
        key = {"api_key_scope": "write", "api_key_project": "*"}
        agent = await site.spawn(
            caller, f"call oubliette_session_spawn {spawn}", project_id=mine["id"], **key
        )
        child = site.agent((await agent.outcome())["structured"]["session_id"])
        asked = await child.event("permission_request")
        await narrow.listen(after=0)
        with pytest.raises(ToolFailed, match=CLOSED):
            await narrow.permit(asked)
        await narrow.event("completion", session_id=agent.session_id)
        assert {event.get("session_id") for event in narrow.events} <= {None, agent.session_id}
        await narrow.stop_listening()
        await caller.listen(after=0)
        assert await caller.permit(await caller.event("permission_request")) == {"accepted": True}
        assert await child.turn() == ["allow"]


async def test_a_request_belongs_to_its_session(site, caller):
    first = await site.spawn(caller, "ask may I?")
    asked = await caller.event("permission_request")
    other = await site.spawn(caller, "ask and I?")
    await caller.event("permission_request", session_id=other.session_id)
    with pytest.raises(ToolFailed, match=CLOSED):
        await caller.permit({**asked, "session_id": other.session_id})
    await caller.permit(asked)
    assert await first.turn() == ["allow"]


# ---------------------------------------------------------------- listeners


async def test_an_open_request_comes_again_and_a_settled_one_does_not(site, caller):
    settled = await site.spawn(caller, "ask one")
    await caller.permit(await caller.event("permission_request", text="one"))
    await settled.turn()
    await site.spawn(caller, "ask two")
    asked = await caller.event("permission_request", text="two")
    await caller.stop_listening()
    place = len(caller.events)
    await caller.listen(after=0)
    again = await caller.event("permission_request", after=place)
    assert (again["request_id"], again["redelivered"]) == (asked["request_id"], True)
    await caller.event("permission_request", after=place, text="two")
    texts = [
        event["text"] for event in caller.events[place:] if event["type"] == "permission_request"
    ]
    assert "one" not in texts
    await caller.permit(again)


async def test_who_comes_late_is_asked_first_thing(site):
    """Without a cursor: from now on, but open requests first."""
    token = site.principal()
    async with site.caller("http-auto", token=token) as caller:
        agent = await site.spawn(caller, "ask is somebody there?")
        await agent.event("permission_request")
        await caller.listen()
        asked = await caller.event("permission_request")
        await caller.permit(asked)
        assert await agent.turn() == ["allow"]


async def test_who_only_watches_is_told_too_and_may_decide(site, caller):
    token = caller.http.headers["Authorization"].removeprefix("Bearer ")
    async with site.caller("http-auto", token=token) as watcher:
        await watcher.listen(observe=True)
        agent = await site.spawn(caller, "ask may I?")
        await watcher.permit(await watcher.event("permission_request"), "deny")
        assert await agent.turn() == ["deny"]


async def test_a_session_without_a_caller_asks_whoever_reads_its_log(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "ask may I?", context=None)
        asked = await agent.event("permission_request")
        await caller.permit(asked)
        assert await agent.turn() == ["allow"]


# ---------------------------------------------------------------- its end


async def test_the_end_of_a_turn_takes_the_question_with_it(site, caller):
    agent = await site.spawn(caller, "ask may I?")
    asked = await caller.event("permission_request")
    await caller.call("session_interrupt", session_id=agent.session_id)
    settled = await caller.event("permission_settled")
    assert settled["decision"] == "deny"
    assert "turn ended" in settled["reason"]
    assert (await agent.event("completion"))["status"] == "interrupted"
    with pytest.raises(ToolFailed, match=CLOSED):
        await caller.permit(asked)
    await agent.say("ask again?")
    await caller.permit(await caller.event("permission_request", text="again?"))
    assert (await agent.event("completion", nth=2))["final_text"] == "allow"


async def test_the_end_of_a_session_takes_the_question_with_it(site, caller):
    agent = await site.spawn(caller, "ask may I?")
    asked = await caller.event("permission_request")
    await agent.end()
    settled = await caller.event("permission_settled")
    assert (settled["request_id"], settled["decision"]) == (asked["request_id"], "deny")
    with pytest.raises(ToolFailed, match=CLOSED):
        await caller.permit(asked)


# ---------------------------------------------------------------- deadlines and crashes


@pytest.fixture
async def server(zygote):
    async with ServerProcess(zygote=zygote, settings=ROOMY) as server:
        yield server


class Here:
    """A server of its own, which is killed and started again."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.token = ""

    async def start(self, seconds: float) -> None:
        await self.server.start(settings={"sessions.permission_timeout_seconds": seconds})
        self.token = self.token or self.server.token("write")

    def caller(self, **more) -> HttpCaller:
        return HttpCaller(self.server.url, self.token, caller_id="me", **more)


async def spawned(caller, prompt: str) -> str:
    project = await caller.call("project_create", name="here", init_git=False)
    answer = await caller.call(
        "session_spawn", project_id=project["id"], prompt=prompt, context=caller.context
    )
    return answer["session_id"]


async def test_what_nobody_decides_is_denied_at_the_deadline(server):
    here = Here(server)
    await here.start(0.3)
    async with here.caller() as caller:
        await caller.listen()
        session = await spawned(caller, below("ask nobody"))
        asked = await caller.event("permission_request", timeout=20)
        settled = await caller.event("permission_settled")
        assert asked["ancestry"][0] == session != asked["session_id"]
        assert settled["session_id"] == asked["session_id"]
        assert (settled["decision"], settled["reason"]) == ("deny", "nobody allowed it in time")
        assert settled["ts"] >= asked["deadline"] - 0.05
        with pytest.raises(ToolFailed, match=CLOSED):
            await caller.permit(asked)


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_decision_counts_after_the_server_was_killed(server, decision):
    """The agent waits meanwhile; its question comes again to whoever comes back."""
    here = Here(server)
    await here.start(120)
    async with here.caller() as caller:
        await caller.listen()
        session = await spawned(caller, "ask may I?\nask may I?")
        asked = await caller.event("permission_request", timeout=20)
    await server.kill()
    await here.start(120)
    async with here.caller() as caller:
        await caller.permit(asked, decision, remember="session")
        await caller.listen(after=asked["seq"])
        done = await caller.event("completion", timeout=20)
        assert done["final_text"] == decision
        assert not caller.of("permission_request")
        page = await caller.call("session_events", session_id=session, max_events=1000)
        said = [event["text"] for event in page["events"] if event["type"] == "message"]
        assert said == [decision, decision]


@pytest.mark.parametrize("point", ["permission_asked", "permission_settled"])
async def test_a_crash_at_any_moment_loses_no_question_and_no_decision(server, point):
    here = Here(server)
    await here.start(120)
    async with here.caller() as caller:
        caller.decide = lambda _: {"decision": "allow", "remember": "session"}
        await caller.listen()
        await server.arm(f"session.{point}=kill@1")
        session = await spawned(caller, "ask may I?\nask may I?\nsay done")
        assert await server.ended() == -9
    await here.start(120)
    async with here.caller(decide=lambda _: "allow") as caller:
        await caller.listen(after=0)
        done = await caller.event("completion", timeout=20)
        assert done["final_text"] == "done"
        page = await caller.call("session_events", session_id=session, max_events=1000)
        said = [event["text"] for event in page["events"] if event["type"] == "message"]
        assert said == ["allow", "allow", "done"]
        kinds = [event["type"] for event in page["events"]]
        assert kinds.count("permission_request") == kinds.count("permission_settled") >= 1


async def test_a_lost_container_takes_the_question_with_it(server):
    here = Here(server)
    await here.start(120)
    async with here.caller() as caller:
        await caller.listen()
        session = await spawned(caller, "ask may I?")
        asked = await caller.event("permission_request", timeout=20)
        for process in server.containers().values():
            procfs.send_signal(process, signal.SIGKILL)
        settled = await caller.event("permission_settled")
        assert settled["request_id"] == asked["request_id"]
        await caller.event("status", session_id=session, status="failed")
        with pytest.raises(ToolFailed, match=CLOSED):
            await caller.permit(asked)
