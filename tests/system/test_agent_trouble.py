"""Agents of other packages, and agents that do not do what they should."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from oubliette.testing.fork_server import Zygote
from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.conformance import parrot
from tests.system.conftest import ROOMY
from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.requires("bubblewrap")]

COLD = 60.0  # seconds that a Python program with large libraries may take on a busy machine


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with an installed package that brings agents, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("packages")
    points = {
        "parrot": "oubliette_parrot:Parrot",
        "deaf": "oubliette_parrot:deaf",
        "slow": "oubliette_parrot:slow",
        "tardy": "oubliette_parrot:tardy",
        "lazy": "oubliette_parrot:lazy",
        "dead": "oubliette_parrot:explodes",
    }
    return parrot.install(folder, points)


@pytest.fixture(scope="module")
def parrots(package):
    """Forks servers that have the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(package))
        with Zygote() as started:
            yield started


@pytest.fixture
async def open_site(parrots, package, monkeypatch):
    """Starts a server that has the package, with more settings; ends it."""
    monkeypatch.setenv("PYTHONPATH", str(package))
    sites: list[Site] = []
    server = ServerProcess(settings=ROOMY, zygote=parrots)

    async def begin(**more: object) -> Site:
        settings = {key.replace("__", "."): value for key, value in more.items()}
        await server.start(settings=settings)
        site = Site(server)
        sites.append(site)
        await site.eyes.__aenter__()
        await site.open()
        return site

    async with server:
        try:
            yield begin
        finally:
            for site in sites:
                await site.tidy()
                await site.eyes.__aexit__(None, None, None)


async def failure(agent, timeout: float = COLD) -> str:
    """Why its session failed."""
    status = await agent.event("status", status="failed", timeout=timeout)
    return status["reason"]


# ---------------------------------------------------------------- of other packages


async def test_an_agent_of_a_package_is_used_by_its_name(open_site):
    """By its entry point alone: tools, questions, interrupts, as with any other."""
    site = await open_site()
    options = await site.eyes.call("project_options")
    assert {"parrot", "deaf"} <= set(options["agents"])
    async with site.caller("http-auto", tools={"add": add}) as caller:
        await caller.listen()
        call = f"call myapp_add {json.dumps({'a': 2, 'b': 3})}"
        agent = await site.spawn(
            caller, f"say hello\n{call}\nask may I?\nsay bye", agent="parrot", autonomy="ask"
        )
        asked = await caller.event("permission_request", timeout=COLD)
        assert (asked["text"], asked["asks_for"]) == (
            "may I?",
            "may I?: execute, this call alone (call-2)",
        )
        await caller.permit(asked)
        done = await agent.event("completion")
        said = [event["text"] for event in agent.log if event["type"] == "message"]
        assert (done["status"], said) == ("completed", ["hello", "5", "once", "bye"])
        called = await agent.event("tool_call")
        assert (called["tool"], called["arguments"]) == ("myapp_add", {"a": 2, "b": 3})
        result = await agent.event("tool_result", call_id=called["call_id"])
        assert result["result"] == {"content": [{"type": "text", "text": "5"}]}
        ready = await agent.event("system", kind="ready")
        assert ready["agent"] == "Parrot"
        await agent.say("wait")
        await agent.event("delta", text="waiting ")
        await caller.call("session_interrupt", session_id=agent.session_id)
        assert (await agent.event("completion", nth=2))["status"] == "interrupted"
        await agent.say("say still here")
        assert (await agent.event("completion", nth=3))["final_text"] == "still here"


@pytest.mark.whole
async def test_a_package_that_is_broken_is_told_to_whoever_asks_for_its_agent(open_site):
    site = await open_site()
    async with site.caller("http-auto") as caller:
        with pytest.raises(ToolFailed) as refused:
            await site.spawn(caller, "say x", agent="dead")
        assert "oubliette-parrot 1.2.3 is no good" in str(refused.value)
        assert "the parrot is no more" in str(refused.value)
        assert "uninstall" in str(refused.value)
        agent = await site.spawn(caller, "say the server lives")
        assert await agent.turn() == ["the server lives"]
    assert "agent not loaded" in site.server.log()


async def test_an_agent_that_dies_at_its_start_says_why(open_site, monkeypatch):
    """What it wrote to standard error last is in the error, without what nobody else may read."""
    monkeypatch.setenv("MODEL_ACCESS", "the-key-of-the-model")
    script = (
        "printf 'Error: Cannot find package \\033[1mthe-sdk\\033[0m\\n' >&2;"
        " echo given $MODEL and $OUBLIETTE_PAIRING_SECRET. >&2; exit 13"
    )
    site = await open_site(
        acp__command=json.dumps(["sh", "-c", script]), acp__env='["MODEL=env:MODEL_ACCESS"]'
    )
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say hello", agent="acp")
        reason = await failure(agent)
        assert reason == (
            "the agent ended with exit code 13: Error: Cannot find package the-sdk\n"
            "given *** and ***."
        )
        error = await agent.event("error")
        assert (error["message"], error["exit_code"]) == (reason, 13)


@pytest.mark.whole
async def test_an_agent_that_dies_in_its_turn_can_be_resumed(open_site):
    site = await open_site()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say one\ndie", agent="parrot")
        assert "exit code 3" in await failure(agent)
        assert (await agent.say("say two"))["resumed"]
        done = await agent.event("completion", nth=2, timeout=COLD)  # after that of the lost turn
        assert done["final_text"] == "two"
        lost = await agent.event("system", kind="not_resumed")
        assert "cannot" in lost["reason"]


# ---------------------------------------------------------------- our MCP server


@pytest.mark.whole
async def test_a_session_whose_agent_starts_no_mcp_server_fails(open_site):
    """It would work without its caller's tools, and nobody would notice."""
    site = await open_site(agents__contact_timeout_seconds=1.0)
    async with site.caller("http-auto", tools={"add": add}) as caller:
        agent = await site.spawn(caller, "say hello\nwait", agent="deaf")
        reason = await failure(agent)
        assert reason.startswith("deaf has not started Oubliette's MCP server within 1 seconds")
        assert "mcpServers" in reason
        assert "agents.contact_timeout_seconds" in reason
        error = await agent.event("error")
        assert error["message"] == reason
        good = await site.spawn(caller, "wait", agent="parrot")
        await good.event("delta", timeout=COLD)
        await good.read(wait=2.0)  # longer than it had for it
        assert (await good.get())["status"] == "running"


@pytest.mark.whole
async def test_an_agent_that_has_contacted_us_need_not_do_so_after_a_restart(open_site):
    site = await open_site(agents__contact_timeout_seconds=2.0)
    server = site.server
    async with site.caller("http-auto", tools={"add": add}) as caller:
        agent = await site.spawn(caller, "say hello", agent="parrot")
        assert (await agent.event("completion", timeout=COLD))["final_text"] == "hello"
        await server.kill()
        await server.start(settings={"agents.contact_timeout_seconds": 2.0})
        page = await agent.read(wait=3.0)
        assert page["status"] == "idle"
        await caller.listen()
        await agent.say('call myapp_add {"a": 1, "b": 1}')
        assert (await agent.event("completion", nth=2, timeout=COLD))["final_text"] == "2"


async def test_the_first_prompt_waits_until_the_agent_has_listed_its_tools(open_site):
    site = await open_site()
    async with site.caller("http-auto", tools={"add": add}) as caller:
        agent = await site.spawn(caller, "list", agent="tardy")
        done = await agent.event("completion", timeout=COLD)
        assert "myapp_add" in done["final_text"].split()


@pytest.mark.whole
async def test_an_agent_that_lists_no_tools_before_its_prompt_gets_it_all_the_same(open_site):
    site = await open_site()
    async with site.caller("http-auto", tools={"add": add}) as caller:
        agent = await site.spawn(caller, "list", agent="lazy")
        assert (await agent.event("completion", timeout=COLD))["final_text"] == "nothing"


@pytest.mark.whole
async def test_an_agent_that_never_gets_ready_fails_its_session(open_site):
    site = await open_site(agents__start_timeout_seconds=4.0)
    async with site.caller("http-auto") as caller:
        began = time.monotonic()
        agent = await site.spawn(caller, "say hello", agent="slow")
        reason = await failure(agent)
        assert "slow was not ready 4 seconds after its start" in reason
        assert "agents.start_timeout_seconds" in reason
        assert reason.endswith(": still waiting for a licence")
        assert time.monotonic() - began < COLD


# ---------------------------------------------------------------- silence


@pytest.mark.whole
async def test_a_turn_fails_when_its_agent_says_nothing_for_too_long(open_site):
    """The session goes on: the next turn is a new chance."""
    site = await open_site(agents__silence_timeout_seconds=5.0)
    async with site.caller("http-auto", tools={"add": add}) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say hello\nsilent", agent="parrot")
        done = await agent.event("completion", timeout=COLD)
        assert done["status"] == "failed"
        assert done["final_text"].startswith("the agent said nothing for 5 seconds")
        error = await agent.event("error")
        assert "agents.silence_timeout_seconds" in error["message"]
        assert (await agent.get())["status"] == "idle"
        await agent.say("say again")
        assert (await agent.event("completion", nth=2))["final_text"] == "again"


@pytest.mark.whole
@pytest.mark.parametrize("waits_for", ["a tool", "a person", "a child"])
async def test_an_agent_that_waits_for_somebody_is_not_silent(open_site, waits_for):
    site = await open_site(agents__silence_timeout_seconds=0.8)
    answer = asyncio.Event()

    async def slow(n: int) -> int:
        """Take long."""
        await answer.wait()
        return n

    prompts = {
        "a tool": 'call myapp_slow {"n": 1}',
        "a person": "ask may I?",
        "a child": "call session_message "
        + json.dumps({"message": 'call myapp_slow {"n": 1}\nsay x'}),
    }
    async with site.caller("http-auto", tools={"slow": slow}) as caller:
        await caller.listen()
        agent = await site.spawn(caller, prompts[waits_for])
        kind = "permission_request" if waits_for == "a person" else "caller_tool_request"
        asked = await caller.event(kind, timeout=COLD)
        await agent.event("status", status="running")
        with pytest.raises(TimeoutError):
            await agent.event("completion", timeout=2.5)
        answer.set()
        if waits_for == "a person":
            await caller.permit(asked)
        assert (await agent.event("completion"))["status"] == "completed"


@pytest.mark.whole
async def test_a_long_sleep_is_silence(open_site):
    """No tool is called, nobody is asked, and nothing is said."""
    site = await open_site(agents__silence_timeout_seconds=1.0)
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "sleep 100")
        done = await agent.event("completion", timeout=COLD)
        assert done["status"] == "failed"
        assert "said nothing" in done["final_text"]


# ---------------------------------------------------------------- interrupts


@pytest.mark.whole
async def test_an_interrupt_before_the_agent_is_there_ends_the_turn(open_site):
    """Its prompt is never run, and the agent is there for the next."""
    site = await open_site()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say never", agent="parrot")
        answer = await caller.call("session_interrupt", session_id=agent.session_id)
        assert answer["status"] in {"created", "running"}
        done = await agent.event("completion", timeout=COLD)
        assert (done["status"], done["final_text"]) == ("interrupted", "")
        await agent.say("say later")
        assert (await agent.event("completion", nth=2, timeout=COLD))["final_text"] == "later"
        assert [e["text"] for e in agent.log if e["type"] == "message"] == ["later"]


@pytest.mark.whole
async def test_an_interrupt_while_the_agent_gets_ready_withdraws_its_prompt(open_site):
    """The process runs and has not opened its session: the prompt was not sent yet."""
    site = await open_site()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say never", agent="parrot")
        await agent.event("status", status="running", timeout=COLD)
        await caller.call("session_interrupt", session_id=agent.session_id)
        await agent.say("say later")
        done = await agent.event("completion", timeout=COLD)
        assert (done["status"], done["final_text"]) == ("interrupted", "")
        assert (await agent.event("completion", nth=2, timeout=COLD))["final_text"] == "later"
        assert [e["text"] for e in agent.log if e["type"] == "message"] == ["later"]
        assert (await agent.get())["status"] == "idle"


@pytest.mark.whole
async def test_an_interrupt_before_the_start_leaves_what_waits_behind_it(open_site):
    site = await open_site()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say never", agent="parrot")
        await agent.say("say second")
        await caller.call("session_interrupt", session_id=agent.session_id)
        first = await agent.event("completion", timeout=COLD)
        assert first["status"] == "interrupted"
        second = await agent.event("completion", nth=2, timeout=COLD)
        assert second["final_text"] == "second"
