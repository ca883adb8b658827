"""oubliette-tools Specification: each scenario, over the real server, relay and client.

Once with the scripted agent, once with OpenCode, whose model is scripted. Scenarios are named as
there; the requirement stands in the docstring.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.model_server import ModelServer
from oubliette.testing.server import ServerProcess
from oubliette.tools.registry import TABLE
from tests import requirements
from tests.system.conftest import ROOMY
from tests.system.real_agents import SLOW, program_settings
from tests.system.site import Agent, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

FOR_AGENTS = {name for name, tool in TABLE.items() if "socket" in tool.transports}
READ = {name for name in FOR_AGENTS if TABLE[name].scope == "read"}


class Kind:
    """One kind of agent on the module's server."""

    def __init__(self, site: Site, name: str, prefix: str) -> None:
        self.site = site
        self.name = name
        self.prefix = prefix
        """What the agent itself puts before the names of our tools."""

    def call(self, tool: str, **arguments: Any) -> str:
        return f"call {self.prefix}{tool} {json.dumps(arguments)}"

    async def spawn(self, prompt: str, *, token: str | None = None, **more: Any) -> Agent:
        caller = self.site.caller("http-auto", token=token)
        async with caller:
            return await self.site.spawn(caller, prompt, agent=self.name, **more)

    async def outcome(self, agent: Agent) -> tuple[bool, str]:
        """Whether the last call of the turn failed, and what it said."""
        said = (await agent.turn(SLOW))[-1]
        results = [event for event in agent.log if event["type"] == "tool_result"]
        return results[-1]["is_error"], said

    def ours(self, listed: str) -> set[str]:
        """The `oubliette_*` tools among the names that the agent lists."""
        names = [name.removeprefix(self.prefix) for name in json.loads(listed)]
        return {name for name in names if name.startswith("oubliette_")}


@pytest.fixture(scope="module")
async def both(zygote: Any, anyio_backend: str) -> AsyncIterator[Site]:
    """A server with both kinds of agent."""
    async with contextlib.AsyncExitStack() as stack:
        settings: dict[str, Any] = {**ROOMY, "agents.start_timeout_seconds": SLOW}
        if requirements.missing("opencode") is None:
            model = await stack.enter_async_context(ModelServer())
            settings |= program_settings("opencode", model)
        server = await stack.enter_async_context(ServerProcess(zygote=zygote, settings=settings))
        await server.start()
        site = Site(server)
        await stack.enter_async_context(site.eyes)
        await site.open()
        yield site


@pytest.fixture(
    params=["scripted", pytest.param("opencode", marks=pytest.mark.requires("opencode"))]
)
async def kind(request: pytest.FixtureRequest, both: Site) -> AsyncIterator[Kind]:
    yield Kind(both, request.param, "oubliette_" if request.param == "opencode" else "")
    await both.tidy()


async def test_valid_admin_api_key_discovers_all_tools(kind: Kind) -> None:
    """Requirement: Tool Discovery via Socket."""
    agent = await kind.spawn(
        "tools",
        token=kind.site.server.token("admin"),
        api_key_scope="admin",
        api_key_project="*",
    )
    (listed,) = await agent.turn(SLOW)
    assert kind.ours(listed) == {f"oubliette_{name}" for name in FOR_AGENTS}


async def test_valid_read_only_api_key_discovers_limited_tools(kind: Kind) -> None:
    """Requirement: Tool Discovery via Socket."""
    agent = await kind.spawn("tools", api_key=kind.site.server.token("read"))
    (listed,) = await agent.turn(SLOW)
    assert kind.ours(listed) == {f"oubliette_{name}" for name in READ}
    assert not {"oubliette_project_create", "oubliette_token_create"} & kind.ours(listed)


async def test_invalid_api_key_fails_discovery(kind: Kind) -> None:
    """Requirement: Tool Discovery via Socket: a warning, and start-up goes on."""
    agent = await kind.spawn("tools", api_key="oub_nonsense")
    (listed,) = await agent.turn(SLOW)
    assert kind.ours(listed) == set()
    assert f"{kind.prefix}session_message" in json.loads(listed)


async def test_droid_calls_project_list_with_valid_key(kind: Kind) -> None:
    """Requirement: Tool Execution via Socket."""
    agent = await kind.spawn(kind.call("oubliette_project_list"), api_key_scope="read")
    failed, said = await kind.outcome(agent)
    assert not failed
    assert kind.site.project["id"] in said


async def test_droid_calls_project_create_with_write_key(kind: Kind) -> None:
    """Requirement: Tool Execution via Socket."""
    name = f"test-project-{kind.name}"
    agent = await kind.spawn(
        kind.call("oubliette_project_create", name=name),
        api_key_scope="write",
        api_key_project="*",
    )
    failed, said = await kind.outcome(agent)
    assert not failed
    (made,) = (await kind.site.eyes.call("project_list", name_contains=name))["projects"]
    assert made["id"] in said


async def test_droid_calls_token_create_with_insufficient_scope(kind: Kind) -> None:
    """Requirement: Tool Execution via Socket.

    A real agent cannot call what it was not shown: it says so itself.
    """
    agent = await kind.spawn(
        kind.call("oubliette_token_create", name="mine", scope="admin"), api_key_scope="write"
    )
    said = (await agent.turn(SLOW))[-1]
    if kind.name == "scripted":
        outcome = json.loads(said)
        assert outcome["is_error"]
        assert "insufficient permissions" in outcome["text"]
    tokens = kind.site.server.control("token_list")["tokens"]
    assert not [token for token in tokens if token["name"] == "mine"]


async def test_tool_call_with_expired_key_fails(kind: Kind) -> None:
    """Requirement: Tool Execution via Socket: it was good at the start, and is good no more.

    Revoked here, which takes no time; that time alone does it too is shown in test_keys.
    """
    key = kind.site.server.token("read")
    async with kind.site.caller("http-auto") as caller:
        agent = await kind.site.spawn(
            caller, kind.call("oubliette_project_list"), agent=kind.name, api_key=key
        )
        failed, _ = await kind.outcome(agent)
        assert not failed
        token_id = "tok_" + key.split("_tok_")[1].split("_")[0]
        kind.site.server.control("token_revoke", token_id=token_id)
        await agent.say(kind.call("oubliette_project_list"))
        failed, said = await kind.outcome(agent)
    assert failed or json.loads(said)["is_error"]
    assert "invalid or expired API key" in said


async def test_tools_use_oubliette_prefix(kind: Kind) -> None:
    """Requirement: Tool Naming Convention."""
    agent = await kind.spawn(
        f"tools\n{kind.call('oubliette_project_get', project_id=kind.site.project['id'])}",
        api_key_scope="read",
    )
    said = await agent.turn(SLOW)
    listed = {name.removeprefix(kind.prefix) for name in json.loads(said[0].split("]")[0] + "]")}
    assert "oubliette_project_get" in listed
    assert "project_get" not in listed
    assert kind.site.project["id"] in said[-1]


async def test_missing_api_key_skips_tool_registration(kind: Kind) -> None:
    """Requirement: No API Key, No Tools."""
    agent = await kind.spawn("tools")
    (listed,) = await agent.turn(SLOW)
    assert kind.ours(listed) == set()
    names = {name.removeprefix(kind.prefix) for name in json.loads(listed)}
    assert {"session_message", "session_events", "session_map"} <= names


@pytest.mark.requires("opencode")
async def test_identity_and_depth_reach_http_servers_of_the_generated_configuration(
    both: Site,
) -> None:
    """`X-Oubliette-Depth`, incremented automatically."""
    heads: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(SLOW):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = (line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        heads.put_nowait({name.lower(): value for name, value in pairs})
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async def of_depth(depth: str) -> dict[str, str]:
        async with asyncio.timeout(SLOW):
            while True:
                head = await heads.get()
                if head.get("x-oubliette-depth") == depth:
                    return head

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        project = await both.new_project(
            mcp_servers={"probe": {"type": "http", "url": url, "headers": {"X-Own": "kept"}}}
        )
        async with both.caller("http-auto") as caller:
            ask = json.dumps({"message": "say I am the child"})
            agent = await both.spawn(
                caller,
                f"call oubliette_session_message {ask}",
                agent="opencode",
                project_id=project["id"],
            )
            root, child = await of_depth("0"), await of_depth("1")
            await agent.turn(SLOW)
            (child_id,) = (await agent.get())["child_session_ids"]
        assert root["x-oubliette-session"] == agent.session_id
        assert child["x-oubliette-session"] == child_id
        assert {root["x-oubliette-project"], child["x-oubliette-project"]} == {project["id"]}
        assert root["x-own"] == "kept"
    await both.tidy()
