"""An agent on the `agent-client-protocol` library, as its authors would write one.

Its prompts are lines: `say TEXT`, `call TOOL JSON` (of the first MCP server), `ask TEXT`, `wait`,
`silent`, `die`, `env NAME`, `list` (says which tools it has). With --deaf it leaves the MCP servers
alone, with --slow it never answers, with --tardy it starts the MCP server after it has answered
`session/new`, with --lazy it lists no tools by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

sys.path.insert(0, sys.argv[1])

DEAF, SLOW, TARDY, LAZY = (f"--{word}" in sys.argv for word in ("deaf", "slow", "tardy", "lazy"))
if SLOW:  # said at once: the imports alone take long on a busy machine
    print("still waiting for a licence", file=sys.stderr, flush=True)

import acp  # noqa: E402 -- after what is said first
from acp.schema import (  # noqa: E402
    AgentCapabilities,
    Implementation,
    PermissionOption,
    ToolCallUpdate,
)


class Tools:
    """A minimal MCP client on stdio."""

    def __init__(self, server) -> None:
        self.server = server
        self.process = None
        self.last = 0
        self.names = []

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            self.server.command,
            *self.server.args,
            env={entry.name: entry.value for entry in self.server.env},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
        await self.ask("initialize", {**hello, "clientInfo": {"name": "parrot", "version": "1"}})
        self.send({"method": "notifications/initialized"})
        if not LAZY:
            await self.list()

    async def list(self) -> None:
        listed = await self.ask("tools/list", {})
        self.names = [tool["name"] for tool in listed["tools"]]

    def send(self, message) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def ask(self, method, params):
        self.last += 1
        self.send({"id": self.last, "method": method, "params": params})
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == self.last and "method" not in message:
                return message.get("result") or message
        raise ConnectionError("the MCP server ended")


class Parrot(acp.Agent):
    """One session."""

    def on_connect(self, conn) -> None:
        self.client = conn
        self.cancelled = asyncio.Event()
        self.tools = None
        self.calls = self.messages = 0

    async def initialize(self, protocol_version, **_):
        if SLOW:
            await asyncio.Event().wait()
        return acp.InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=AgentCapabilities(),
            agent_info=Implementation(name="parrot", title="Parrot", version="1.2.3"),
        )

    async def new_session(self, cwd, mcp_servers=None, **_):
        if mcp_servers and not DEAF:
            self.tools = Tools(mcp_servers[0])
            if TARDY:
                self.starting = asyncio.create_task(self.start_late())
            else:
                await self.tools.start()
        return acp.NewSessionResponse(session_id="the-session")

    async def start_late(self) -> None:
        await asyncio.sleep(0.5)
        await self.tools.start()

    async def cancel(self, session_id, **_) -> None:
        self.cancelled.set()

    async def prompt(self, session_id, prompt, **_):
        self.cancelled.clear()
        for line in prompt[0].text.splitlines():
            verb, _, rest = line.partition(" ")
            if self.cancelled.is_set():
                break
            said = await getattr(self, f"do_{verb}")(session_id, rest)
            if said is not None:
                self.messages += 1
                update = acp.update_agent_message_text(said)
                update.message_id = f"message-{self.messages}"
                await self.client.session_update(session_id=session_id, update=update)
        reason = "cancelled" if self.cancelled.is_set() else "end_turn"
        return acp.PromptResponse(stop_reason=reason)

    async def do_say(self, _, text):
        return text

    async def do_list(self, *_):
        return " ".join(self.tools.names) or "nothing"

    async def do_env(self, _, name):
        return os.environ.get(name, "unset")

    async def do_call(self, session_id, rest):
        name, _, arguments = rest.partition(" ")
        self.calls += 1
        call_id = f"call-{self.calls}"
        given = json.loads(arguments or "{}")
        start = acp.start_tool_call(call_id, name, status="in_progress", raw_input=given)
        await self.client.session_update(session_id=session_id, update=start)
        result = await self.tools.ask("tools/call", {"name": name, "arguments": given})
        text = result["content"][0]["text"] if "content" in result else json.dumps(result)
        end = acp.update_tool_call(
            call_id,
            status="failed" if result.get("isError") else "completed",
            content=[acp.tool_content(acp.text_block(text))],
        )
        await self.client.session_update(session_id=session_id, update=end)
        return text

    async def do_ask(self, session_id, text):
        self.calls += 1
        answer = await self.client.request_permission(
            session_id=session_id,
            tool_call=ToolCallUpdate(tool_call_id=f"call-{self.calls}", title=text, kind="execute"),
            options=[
                PermissionOption(option_id="always", name="Always", kind="allow_always"),
                PermissionOption(option_id="once", name="Once", kind="allow_once"),
                PermissionOption(option_id="no", name="No", kind="reject_once"),
            ],
        )
        return getattr(answer.outcome, "option_id", answer.outcome.outcome)

    async def do_wait(self, session_id, _):
        start = acp.update_agent_message_text("waiting ")
        await self.client.session_update(session_id=session_id, update=start)
        await self.cancelled.wait()

    async def do_silent(self, *_):
        await self.cancelled.wait()

    async def do_die(self, *_):
        os._exit(3)


asyncio.run(acp.run_agent(Parrot()))
