"""An agent waits for our tools as long as it is told to, not as long as it would by itself."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from oubliette.incontainer.client import tool_catalog
from oubliette.incontainer.client.main import DEADLINE_MARGIN
from oubliette.runtime.agents import AgentSession, DroidRuntime, OpencodeRuntime
from oubliette.runtime.agents.droid import runtime
from oubliette.runtime.containers import Inside
from tests.conformance.agents import AGENTS, new_session
from tests.conformance.engines import ENGINES, Bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SILENT = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"],
                  "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "wait", "description": "never answers",
                             "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        continue
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""

SESSION = AgentSession(
    session_id="gogol_1",
    project_id="proj_1",
    depth=0,
    cwd="/workspace",
    home="/home/agent/gogol_1",
    pairing_secret="secret",
)


@pytest.fixture
async def process_bench(anyio_backend: str) -> AsyncIterator[Bench]:
    """One engine is enough: the same program reads the same settings everywhere."""
    made = Bench(next(engine for engine in ENGINES if engine.name == "process"))
    await made.runtime.ping()
    yield made
    await made.aclose()


def test_agents_wait_longer_for_our_tools_than_we_do() -> None:
    """The agent's own MCP timeout > the client's > the server's."""
    client = (tool_catalog.LONGEST_TIMEOUT_SECONDS + DEADLINE_MARGIN) * 1000
    droid = DroidRuntime({"model": "m"}).command(SESSION, Inside())
    ruling = next(file for file in droid.files if file.path == runtime.RULING)
    assert json.loads(ruling.content)["mcp"]["mcpServers"]["oubliette"]["timeout"] > client
    opencode = OpencodeRuntime({"model": "m"}).command(SESSION, Inside())
    settings = json.loads(opencode.env["OPENCODE_CONFIG_CONTENT"])
    assert settings["mcp"]["oubliette"]["timeout"] > client


@pytest.mark.requires("droid")
@pytest.mark.requires("bubblewrap")
async def test_droid_keeps_to_the_time_that_it_is_told(
    process_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's servers have 180 s and no other time; those of settings have what they say."""
    monkeypatch.setattr(runtime, "TOOL_TIMEOUT", 3000)
    agent = next(agent for agent in AGENTS if agent.name == "droid")
    running = await agent.start(process_bench)
    folder = next(m.source for m in running.spec.mounts if m.target == "/workspace")
    (folder / "silent.py").write_text(SILENT)
    inside = msgspec.structs.replace(running.info.inside, zipapp="/workspace/silent.py")
    async with asyncio.timeout(100):
        executor = await agent.runtime().execute_streaming(
            running.link, inside, new_session(running)
        )
        events = executor.events()
        await executor.send("call oubliette___wait {}")
        failed = {}
        async for event in events:
            if event.type == "tool_result" and event.data["tool"] == "oubliette___wait":
                failed = event.data
                break
        await events.aclose()
        await executor.close()
    assert failed["is_error"]
    assert "timed out" in json.dumps(failed)
