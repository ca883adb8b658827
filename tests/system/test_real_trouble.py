"""Real agents that ask, that are killed, whose model fails, whose network is silent."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.process import procfs
from tests.conformance.agents import execute
from tests.system.real_agents import SLOW, site_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.model_server import ModelServer
    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

LONG = 2 * SLOW
ECHO = 'call bash {"command": "echo hi", "description": "x"}'
RUNS = {
    "opencode": ECHO,
    "opencode-acp": ECHO,
    "droid": f"call Execute {execute('echo hi')}",
}
"""Agent → a prompt with which it runs a command."""
PREFIX = {"opencode": "oubliette_", "opencode-acp": "oubliette_", "droid": "oubliette___"}
REAL = [
    pytest.param(name, marks=pytest.mark.requires("droid" if name == "droid" else "opencode"))
    for name in RUNS
]
each_agent = pytest.mark.parametrize("name", REAL)
droid = pytest.mark.requires("droid")


@pytest.fixture
async def open_site(zygote: Any, model: ModelServer) -> AsyncIterator[Any]:
    """A server with these further settings."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:

        async def begin(**settings: Any) -> Site:
            named = {key.replace("__", ".", 1): value for key, value in settings.items()}
            return await stack.enter_async_context(site_on("process", zygote, model, **named))

        yield begin


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


# ---------------------------------------------------------------- permissions


@each_agent
async def test_a_real_agent_asks_the_caller_of_the_root(open_site, name):
    """For a command and for a tool of the caller; over two crashes of the server."""
    site = await open_site()
    server = site.server
    async with site.caller("http-auto", tools={"add": add}) as caller:
        await caller.listen()
        prompt = f"{RUNS[name]}\nslow 8\nsay done"
        agent = await site.spawn(caller, prompt, agent=name, autonomy="ask")
        asked = await caller.event("permission_request", timeout=LONG)
        assert asked["ancestry"] == [agent.session_id]
        assert asked["tool_call"]
        # The agent waits meanwhile, and what it has asked is read again.
        await server.kill()
        await server.start()
        await caller.permit(asked, remember="session")
        await agent.event("tool_result", timeout=LONG)
        # Whether it has heard is not known: it is told again, and that changes nothing.
        await server.kill()
        await server.start()
        await caller.listen(after=asked["seq"])
        done = await agent.event("completion", timeout=LONG)
        assert (done["status"], "done" in done["final_text"]) == ("completed", True)
        (result,) = [event for event in agent.log if event["type"] == "tool_result"]
        assert "hi" in json.dumps(result["result"])

        await agent.say(RUNS[name])  # of the same kind: nobody is asked
        again = await agent.event("completion", nth=2, timeout=LONG)
        assert "hi" in again["final_text"]
        assert {event["request_id"] for event in caller.of("permission_request")} == {
            asked["request_id"]
        }

        place = len(caller.events)
        await agent.say(f"call {PREFIX[name]}myapp_add {json.dumps({'a': 2, 'b': 3})}")
        tool = await caller.event("permission_request", after=place, timeout=LONG)
        assert tool["asks_for"] != asked["asks_for"]
        assert "myapp_add" in tool["asks_for"]
        await caller.permit(tool, "deny")
        denied = await agent.event("completion", nth=3, timeout=LONG)
        assert "tool said: 5" not in denied["final_text"]
        assert not caller.of("caller_tool_request")


@droid
@pytest.mark.parametrize(("autonomy", "asks"), [("ask", True), ("off", False)])
async def test_droid_has_its_autonomy_again_after_a_resume(open_site, autonomy, asks):
    """After `load_session` it would be `off`, which asks for everything."""
    site = await open_site()
    async with site.caller("http-auto", decide=lambda _: "allow") as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say ready", agent="droid", autonomy=autonomy)
        await agent.turn(LONG)
        for pid in procfs.pids():
            told = procfs.environment(pid).get("OUBLIETTE_SESSION_ID") == agent.session_id
            if told and "stream-jsonrpc" in procfs.command_line(pid):
                found = procfs.identify(pid)
                assert found is not None
                procfs.send_signal(found, signal.SIGKILL)
        await agent.event("status", status="failed", timeout=LONG)
        assert (await agent.say(RUNS["droid"]))["resumed"]
        assert "hi" in (await agent.turn(LONG))[-1]
        assert bool(caller.of("permission_request")) is asks
        ready = await agent.event("system", kind="ready", nth=2)
        assert ready["resumed"]


# ---------------------------------------------------------------- models and networks


@pytest.mark.parametrize("name", [REAL[0], REAL[2]], ids=lambda name: getattr(name, "values", name))
async def test_a_model_that_fails_is_asked_again_and_not_for_ever(open_site, name):
    site = await open_site(agents__max_retries=1)
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "error 503 overloaded", agent=name)
        first = await agent.event("system", kind="retry", timeout=LONG)
        assert (first["attempt"], first["message"]) == (1, "overloaded")
        done = await agent.event("completion", timeout=LONG)
        assert done["status"] == "failed"
        assert done["final_text"].startswith("the model failed 2 times in a row: overloaded")
        await agent.say("say fine")
        assert (await agent.event("completion", nth=2, timeout=LONG))["final_text"] == "fine"


@droid
async def test_droid_fails_with_a_remedy_where_the_network_swallows_everything(open_site):
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    proxy = await asyncio.start_server(hold, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    variables = f"HTTPS_PROXY={address},HTTP_PROXY={address},NO_PROXY=127.0.0.1"
    async with proxy:
        site = await open_site(agents__start_timeout_seconds=10, droid__env=variables)
        async with site.caller("http-auto") as caller:
            agent = await site.spawn(caller, "say hello", agent="droid")
            status = await agent.event("status", status="failed", timeout=LONG)
            assert "droid was not ready 10 seconds after its start" in status["reason"]
            assert "it waits for Factory's servers" in status["reason"]
        await site.tidy()


@droid
async def test_droid_fails_fast_without_a_network(open_site):
    site = await open_site(process__network="none", agents__max_retries=1)
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say hello", agent="droid")
        done = await agent.event("completion", timeout=LONG)
        assert done["status"] == "failed"
        assert "onnection" in done["final_text"]
