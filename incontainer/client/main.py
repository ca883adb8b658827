"""`oubliette-client`: the MCP server that every agent in a container starts.

It connects the agent's stdio with the relay's socket, and has no other source of information.
Standard library only; ready within 150 ms, because its agent waits for it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from .. import wire
from ..io import linux
from ..io.event_loop import Loop
from ..io.json_values import as_object
from ..io.lines import Lines
from ..io.stdio import log, take_stdio
from . import tool_catalog as tools
from .calls import LINK_BROKE, CallFailed, PendingCall, new_call_id
from .child_turn import ChildTurn, unanswered
from .context_tools import Context, ContextFault
from .mcp_server import StdioMcpServer
from .relay_link import Link
from .requests import INVALID_PARAMS
from .settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .requests import AgentRequest

    Json = dict[str, Any]

FLUSH_SECONDS = 0.5  # for the last output to agent and relay, once the agent has gone
DEADLINE_MARGIN = 15.0  # seconds that the client waits longer than the server
TURN_SECONDS = 86400.0  # such a call ends with the other agent's turn; the server limits that
SPAWN_SECONDS = 300.0
TOOL_SECONDS = 3600.0  # Oubliette's own tools: some build images

LONGEST_NAME = 256  # characters of a tool's name that the server takes
NOT_FOUND = "not_found"  # kind of the server's error for a tool that no caller provides

# Oubliette's tools that change nothing: they may run twice when the link breaks on the way.
READS = ("_list", "_get", "_events", "_options", "_limits", "_logs", "_read")


class AgentClient:
    """Connects the agent's requests with the server's answers."""

    def __init__(self, settings: Settings, loop: Loop, stdin: int, stdout: int) -> None:
        self._loop = loop
        self._api_key = settings.api_key
        self._outage = settings.outage
        self._sends_config = settings.header.secret is not None  # what serves bare clients may not
        self._context: Context | None = None
        if settings.workspace and settings.session_id:
            self._context = Context(settings.workspace, settings.session_id)
        self._catalog = tools.Catalog(log, has_context=self._context is not None)
        self._early: list[tuple[AgentRequest, Callable[[], None]]] = []  # wait for configuration
        self._configured = False
        self._key_answered = settings.api_key is None
        self._waiting_over = False  # for lists of tools
        self._calls_over = False  # for calls of tools that are not listed yet
        self._revision: object = None  # of the tools in the server's last configuration
        self._unlisted: object = None  # revision of the tools whose list the agent has yet to fetch
        self._fetched = False  # whether it has fetched a list at all
        self._agent_full = self._link_full = False
        self._ending = False
        self._mcp = StdioMcpServer(self, self._to_agent)
        self._agent = Lines(
            loop,
            stdin,
            stdout,
            on_line=self._mcp.line,
            on_closed=self._agent_gone,
            on_full=self._agent_slow,
        )
        self._link = Link(
            loop,
            settings.socket,
            settings.header,
            on_config=self._config,
            on_connected=self._connected,
            on_unreachable=self._stop_waiting,
            on_full=self._relay_slow,
            log=log,
        )
        loop.call_later(settings.grace, self._stop_listing)
        loop.call_later(settings.call_grace, self._stop_waiting)

    def run(self) -> None:
        """Serve until the agent has gone or SIGTERM comes."""
        self._loop.on_signal(signal.SIGTERM, self.end)
        self._link.connect()
        self._loop.run()

    def end(self) -> None:
        """Cancel running calls, flush the output, and stop."""
        if self._ending:
            return
        self._ending = True
        self._stop_waiting()
        self._link.close()
        if self._agent.waiting or self._link.waiting:
            self._loop.call_later(FLUSH_SECONDS, self._loop.stop)
        else:
            self._loop.stop()

    # Toolbox

    def list_tools(self, request: AgentRequest) -> None:
        """Answer `tools/list`, once the first configuration has arrived or is overdue."""
        if self._waiting_over or self._known():
            self._mcp.answer_list(request, self._catalog.entries())
            revision, self._unlisted = self._unlisted, None
            first, self._fetched = not self._fetched, True
            self._tools_listed(self._revision if first else revision)
        else:
            self._wait(request, lambda: self.list_tools(request))

    def call_tool(self, request: AgentRequest, name: str, arguments: Json) -> None:
        tool = self._catalog.find(name)
        if tool is None and not (self._calls_over or self._known()):
            # An agent that caches its tools may call one before it is there, and the server that
            # provides it may be reconnecting: wait as long as a call waits for a broken link.
            self._wait(request, lambda: self.call_tool(request, name, arguments))
            return
        if tool is None:
            if not name.startswith(tools.OUBLIETTE_PREFIX):
                self._call_unlisted(request, name, arguments)
                return
            if self._api_key is None:
                request.fail(INVALID_PARAMS, f"Unknown tool: {name}")
                return
            # not listed, because the key's scope forbids it; the server refuses it
            tool = tools.CatalogTool({"name": name, "inputSchema": {}}, tools.OUBLIETTE, name[10:])
        if tool.kind == tools.CALLER:
            self._call_caller(request, tool.remote_name, arguments)
        elif tool.kind == tools.OUBLIETTE:
            self._call_oubliette(request, tool, arguments)
        elif tool.kind == tools.CONTEXT:
            self._call_context(request, tool, arguments)
        else:
            self._call_base(request, tool, arguments)

    def _call_context(
        self, request: AgentRequest, tool: tools.CatalogTool, arguments: Json
    ) -> None:
        assert self._context is not None
        try:
            request.answer(tools.success(self._context.call(tool.remote_name, arguments)))
        except ContextFault as fault:
            request.answer(tools.tool_error(str(fault), "invalid"))

    def _call_caller(
        self, request: AgentRequest, name: str, arguments: Json, *, listed: bool = True
    ) -> None:
        params = {"tool": name, "arguments": arguments, "call_id": new_call_id()}
        seconds = self._catalog.call_timeout_seconds + DEADLINE_MARGIN
        self._forward(request, "caller_tool", params, seconds, unlisted="" if listed else name)

    def _call_unlisted(self, request: AgentRequest, name: str, arguments: Json) -> None:
        """Leave it to the server, whose configuration with this tool may be on its way."""
        if self._configured and self._sends_config and 0 < len(name) <= LONGEST_NAME:
            self._call_caller(request, name, arguments, listed=False)
        else:
            request.fail(INVALID_PARAMS, f"Unknown tool: {name}")

    def _call_base(self, request: AgentRequest, tool: tools.CatalogTool, arguments: Json) -> None:
        params = {**arguments, "call_id": new_call_id()}
        if tool.remote_name == "session_events":
            del params["call_id"]
            seconds = _seconds(arguments.get("wait_seconds")) + 60.0
        elif arguments.get("wait") is False:
            seconds = SPAWN_SECONDS
        else:
            seconds = TURN_SECONDS
            if tool.remote_name == "session_message":
                self._forward(request, "session_message", params, seconds, follow=True)
                return
        self._forward(request, tool.remote_name, params, seconds)

    def _call_oubliette(
        self, request: AgentRequest, tool: tools.CatalogTool, arguments: Json
    ) -> None:
        call_id = new_call_id()
        repeatable = tool.remote_name.endswith(READS)
        if not repeatable and tool.accepts("idempotency_key"):
            repeatable = True
            arguments = {"idempotency_key": call_id, **arguments}
        params = {
            "api_key": self._api_key,
            "tool": tool.remote_name,
            "arguments": arguments,
            "call_id": call_id,
        }

        def done(result: object, failed: CallFailed | None) -> None:
            if failed is None:
                request.answer(tools.oubliette_success(result))
            else:
                request.answer(tools.oubliette_error(failed.code, failed.message, failed.kind))

        call = PendingCall(
            "oubliette_call_tool",
            params,
            done=done,
            outage_seconds=self._outage,
            repeatable=repeatable,
            on_progress=request.progress if request.token is not None else None,
        )
        self._start(request, call, TOOL_SECONDS)

    def _forward(
        self,
        request: AgentRequest,
        method: str,
        params: Json,
        seconds: float,
        *,
        follow: bool = False,
        unlisted: str = "",
    ) -> None:
        due = time.monotonic() + seconds

        def done(result: object, failed: CallFailed | None) -> None:
            spawned = unanswered(result) if follow and failed is None else None
            if spawned is not None:
                ChildTurn(self._loop, self._link, request, spawned, due=due).ask()
            elif failed is None:
                request.answer(tools.success(result))
            elif unlisted and failed.kind == NOT_FOUND:
                request.fail(INVALID_PARAMS, f"Unknown tool: {unlisted}")
            else:
                request.answer(tools.tool_error(failed.message, failed.kind))

        progress = request.progress if request.token is not None else None
        call = PendingCall(
            method, params, done=done, outage_seconds=self._outage, on_progress=progress
        )
        self._start(request, call, seconds)

    def _start(self, request: AgentRequest, call: PendingCall, seconds: float) -> None:
        number = self._link.call(call, seconds)
        request.on_cancel = lambda: self._link.cancel(number)

    # The tool list

    def _known(self) -> bool:
        return self._configured and self._key_answered

    def _wait(self, request: AgentRequest, work: Callable[[], None]) -> None:
        entry = request, work
        self._early.append(entry)
        request.on_cancel = lambda: self._early.remove(entry)

    def _work_off(self) -> None:
        if self._waiting_over or self._known():
            early, self._early = self._early, []
            for request, work in early:
                request.on_cancel = None
                work()  # waits again if its own time is not over

    def _config(self, params: Json) -> None:
        self._configured = True
        changed = self._catalog.configure_caller(params)
        self._revision = revision = params.get("revision")
        notified = changed and self._mcp.tools_changed()
        if notified or self._unlisted is not None:
            self._unlisted = revision
        else:
            self._tools_listed(revision)
        # Not at once: changes made while no client ran come after this line, and are read with it.
        self._loop.call_later(0.0, self._work_off)

    def _tools_listed(self, revision: object) -> None:
        """Report that the agent has the tools of this `caller_tools_config`, or no older list."""
        if revision is not None:  # a server that gives none does not wait for it
            params = {"revision": revision, "fetched": self._fetched}
            self._link.notify("tools_listed", params)

    def _connected(self) -> None:
        if self._api_key is None:
            return

        def done(result: object, failed: CallFailed | None) -> None:
            if failed is not None and failed.kind == LINK_BROKE:
                return  # the next link repeats it
            self._key_answered = True
            if failed is None:
                found = as_object(result) or {}
                self._changed(self._catalog.configure_oubliette(found.get("tools")))
            else:
                log(f"WARNING: no oubliette_* tools: {failed.message}")
                # tools of an earlier link stay listed: each call is checked by the server anyway
                self._changed(False)

        call = PendingCall(
            "oubliette_tools",
            {"api_key": self._api_key},
            done=done,
            outage_seconds=self._outage,
            repeatable=False,  # requested again on each new link
        )
        self._link.call(call, TOOL_SECONDS)

    def _changed(self, changed: bool) -> None:  # noqa: FBT001 -- what the catalog has just returned
        if changed:
            self._mcp.tools_changed()
        self._work_off()

    def _stop_listing(self) -> None:
        self._waiting_over = True
        self._work_off()

    def _stop_waiting(self) -> None:
        self._calls_over = True
        self._stop_listing()

    # Flow control

    def _to_agent(self, data: bytes) -> None:
        self._agent.send(data)

    def _agent_gone(self, _reason: str) -> None:
        self.end()

    def _agent_slow(self, full: bool) -> None:  # noqa: FBT001 -- a callback's only argument
        self._agent_full = full
        if full:
            self._link.pause()
        else:
            self._link.resume()
        self._pace_agent()

    def _relay_slow(self, full: bool) -> None:  # noqa: FBT001
        self._link_full = full
        self._pace_agent()

    def _pace_agent(self) -> None:
        if self._agent_full or self._link_full:
            self._agent.pause()
        else:
            self._agent.resume()


def _seconds(value: object) -> float:
    return float(min(max(value, 0), 3600)) if isinstance(value, (int, float)) else 0.0


def main(arguments: list[str] | None = None) -> int:
    """Run the client; returns the exit code: 0 when the agent has gone, 2 for a bad environment."""
    linux.hide_from_tracers()
    try:
        settings = Settings(os.environ, sys.argv[1:] if arguments is None else arguments)
    except wire.WireError as error:
        log(str(error))
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the agent, whose group we are in
    stdin, stdout = take_stdio()
    blocking = os.get_blocking(stdout)
    try:
        AgentClient(settings, Loop(), stdin, stdout).run()
    finally:
        os.set_blocking(stdout, blocking)  # it may be a terminal that others use after us
    return 0
