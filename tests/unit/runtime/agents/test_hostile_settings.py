"""What is done about a repository's settings, by the program that would obey them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.runtime.agents import AgentSession, OpencodeAcpRuntime, OpencodeRuntime
from oubliette.runtime.agents.acp.runtime import AcpRuntime
from oubliette.runtime.containers.base import Inside

pytestmark = pytest.mark.anyio

SESSION = AgentSession(
    session_id="gogol_1",
    project_id="proj_1",
    depth=0,
    cwd="/workspace/workspaces/w",
    home="/home/agent/gogol_1",
    pairing_secret="pairing",
)
MODES = [{"id": "default", "name": "Default"}, {"id": "bypassPermissions", "name": "Bypass"}]
OPENED = {
    "sessionId": "s",
    "modes": {"currentModeId": "bypassPermissions", "availableModes": MODES},
}


async def acp(*command: str, **more: Any) -> AcpRuntime:
    runtime = AcpRuntime()
    await runtime.initialize({"command": command, **more})
    return runtime


def begun(adapter: Any) -> tuple[dict, list, list]:
    """What an ACP session is opened with, the events of that, and what is asked then."""
    adapter.writes()
    asked: list[dict] = []
    events: list[Any] = []
    offset = 0
    for name, result in {"initialize": {}, "session": OPENED}.items():
        line = json.dumps({"jsonrpc": "2.0", "id": name, "result": result}).encode() + b"\n"
        events += adapter.feed(line, offset)
        offset += len(line)
        asked += [json.loads(frame) for frame in adapter.writes() if frame]
    assert adapter.failed is None
    system = [event.data for event in events if event.type == "system"]
    return asked[0]["params"], system, asked[1:]


@pytest.mark.parametrize(
    "command", [["claude-agent-acp"], ["npx", "@agentclientprotocol/claude-agent-acp"]]
)
async def test_claude_code_reads_no_settings_of_a_repository_but_its_rules(command) -> None:
    runtime = await acp(*command)
    (file,) = runtime.command(SESSION, Inside()).files
    assert file.path == ".claude/CLAUDE.md"
    assert file.content.decode().splitlines() == [
        "@/workspace/workspaces/w/CLAUDE.md",
        "@/workspace/workspaces/w/AGENTS.md",
    ]
    params, told, (mode,) = begun(runtime.adapter(SESSION, Inside()))
    options = params["_meta"]["claudeCode"]["options"]
    assert options == {"settingSources": ["user"], "strictMcpConfig": True}
    assert mode["method"] == "session/set_mode"
    assert mode["params"]["modeId"] == "default"
    assert told == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["codex-acp"], "MCP servers of a repository's .codex/config.toml"),
        (["/opt/bin/gemini", "--acp"], ".gemini/settings.json"),
        (["qwen", "--acp"], ".qwen/settings.json"),
    ],
)
async def test_what_is_left_open_is_told_before_the_first_turn(command, said) -> None:
    runtime = await acp(*command)
    params, (told,), more = begun(runtime.adapter(SESSION, Inside()))
    assert ("_meta" in params, more) == (False, [])
    assert told["kind"] == "repository_obeyed"
    assert said in told["reason"]


async def test_a_program_that_nobody_knows_is_opened_as_it_is() -> None:
    runtime = await acp("somebodys-agent")
    assert runtime.command(SESSION, Inside()).files == ()
    params, told, more = begun(runtime.adapter(SESSION, Inside()))
    assert (set(params), told, more) == ({"cwd", "mcpServers"}, [], [])


async def test_with_a_trusted_repository_nothing_is_done_and_the_session_says_so() -> None:
    runtime = await acp("claude-agent-acp", trust_repository=True)
    assert runtime.command(SESSION, Inside()).files == ()
    params, (told,), more = begun(runtime.adapter(SESSION, Inside()))
    assert ("_meta" in params, more) == (False, [])
    assert "trust_repository" in told["reason"]


@pytest.mark.parametrize("kind", [OpencodeRuntime, OpencodeAcpRuntime])
def test_opencode_is_guarded_unless_the_repository_is_trusted(kind) -> None:
    env = kind({"model": "m"}).command(SESSION, Inside()).env
    assert env["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    assert "OUBLIETTE_TRUST_REPOSITORY" not in env
    env = kind({"model": "m", "trust_repository": True}).command(SESSION, Inside()).env
    assert "OPENCODE_DISABLE_PROJECT_CONFIG" not in env
    assert env["OUBLIETTE_TRUST_REPOSITORY"] == "1"


def test_a_session_of_opencode_that_trusts_a_repository_says_so() -> None:
    adapter = OpencodeAcpRuntime({"trust_repository": True}).adapter(SESSION, Inside())
    _, (told,), _ = begun(adapter)
    assert "plugins" in told["reason"]
    assert begun(OpencodeAcpRuntime().adapter(SESSION, Inside()))[1] == []
