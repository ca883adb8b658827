"""McpDispatcher: initialise, tools/list and tools/call through the SDK, for both generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mcp_types as t
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError

from oubliette.errors import LimitExceeded
from oubliette.mcp_front.auth import header
from oubliette.mcp_front.current_call import CurrentCall, current_call
from oubliette.mcp_front.protocol import SESSION_HEADER
from oubliette.mcp_front.resources import WorkspaceResources
from oubliette.mcp_front.transport import request_stream
from oubliette.mcp_front.transport.error_responses import (
    SERVER_ERROR,
    tool_failure,
    tool_result,
)
from oubliette.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.models import InitializationOptions
    from starlette.types import Scope

    from oubliette.mcp_front.calls import ToolCalls
    from oubliette.mcp_front.tool_adapter import ToolAdapter
    from oubliette.tools.schema.tool_result import ToolResult
    from oubliette.tools.spec import CallContext

INSTRUCTIONS: Final = (
    "Oubliette runs coding agents in isolated containers. project_create, then session_spawn with"
    " a prompt; follow with session_events or caller_listen. To provide tools to the agents, give"
    " caller_id and caller_tools, keep caller_listen open, and answer each caller_tool_request"
    " with caller_tool_response."
)
_BEFORE_HANDSHAKE: Final = frozenset({"initialize", "ping", "notifications/cancelled"})
"""Methods that the SDK accepts from a session before its handshake."""
_MAX_LISTS: Final = 32
"""Lists of tools that are kept; there is one for each kind of scope and version of the protocol."""


class McpDispatcher:
    """MCP requests, answered from a tool table.

    Args:
        tools: The tool table.
        calls: Executes tool calls.
        initialized: Called with the scope of each `initialize` that has succeeded, and its key;
            raises LimitExceeded if its principal may not open another session.
        begun: Called with each session whose handshake is complete.
    """

    def __init__(
        self,
        tools: ToolAdapter,
        calls: ToolCalls,
        initialized: Callable[[Scope, CallContext], None],
        begun: Callable[[str], None],
    ) -> None:
        self._tools = tools
        self._calls = calls
        self._initialized = initialized
        self._begun = begun
        self._listed: list[object] = []
        """Lists of tools that were sent, by scope and version: see `_shared`."""
        self._subscriptions = ListenHandler(InMemorySubscriptionBus())
        resources = WorkspaceResources(tools, self._ask)
        server: Server[Any] = Server(
            "oubliette",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,  # type: ignore[arg-type] - dicts are taken, and not copied
            on_call_tool=self._call,  # type: ignore[arg-type]
            on_list_resources=resources.list,
            on_list_resource_templates=resources.templates,
            on_read_resource=resources.read,
            on_subscriptions_listen=self._subscriptions,
            get_tool_input_schema=_no_schema,
        )
        # Given as `on_set_logging_level` it would warn; without it no logging is declared.
        server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, _set_level)
        # OpenTelemetry's middleware is removed: it costs on every call and has no exporter here.
        server.middleware[:] = [self._watch, self._shared, _named_faults]
        # Over HTTP the SDK asks for options without declaring that our tools may change.
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))

        def as_ours(*_: object, **__: object) -> InitializationOptions:
            return options

        server.create_initialization_options = as_ours
        self.server = server

    def close(self) -> None:
        """Close open `subscriptions/listen` streams regularly."""
        self._subscriptions.close()

    async def _watch(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Note the completion of answers and handshakes."""
        exchange = None if ctx.request is None else request_stream.of(ctx.request.scope)
        try:
            result = await call_next(ctx)
        finally:
            if exchange is not None and ctx.request_id is not None:
                exchange.answer_comes()
        if exchange is not None and ctx.method == "initialize":
            assert ctx.request is not None
            try:
                self._initialized(ctx.request.scope, exchange.who.context)
            except LimitExceeded as error:
                raise MCPError(SERVER_ERROR, str(error)) from error
        if exchange is not None and ctx.method not in _BEFORE_HANDSHAKE:
            session_id = _session_id(ctx)
            if session_id is not None:
                self._begun(session_id)
        return result

    async def _shared(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Answer `tools/list` with the same objects each time.

        The SDK makes a copy of all tools for each answer, and a session keeps its last answer until
        the next one: hundreds of kilobytes for each client that lists the tools and waits.
        """
        result = await call_next(ctx)
        if ctx.method != "tools/list" or not isinstance(result, dict):
            return result
        tools = result.get("tools")
        for known in self._listed:
            if known == tools:
                return {**result, "tools": known}
        if len(self._listed) >= _MAX_LISTS:
            self._listed.pop(0)
        self._listed.append(tools)
        return result

    async def _list(self, context: ServerRequestContext[Any, Any], _: object) -> dict[str, Any]:
        assert context.request is not None
        who = request_stream.of(context.request.scope).who
        return {
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "tools": self._tools.list(who.context),
        }

    async def _call(
        self, context: ServerRequestContext[Any, Any], params: t.CallToolRequestParams
    ) -> dict[str, Any]:
        name = params.name
        if not self._tools.has(name):
            raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {name[:128]}")
        try:
            answer = await self._ask(context, name, params.arguments)
        except MCPError:
            raise
        except Exception as error:
            return tool_failure(error, name)
        return tool_result(answer.structured, answer.text, is_error=answer.is_error)

    async def _ask(
        self,
        context: ServerRequestContext[Any, Any],
        name: str,
        arguments: dict[str, Any] | None,
    ) -> ToolResult:
        """Call a tool for the client of a request."""
        assert context.request is not None
        exchange = request_stream.of(context.request.scope)
        call = CurrentCall(context, exchange)
        current_call.set(call)
        session_id = None if call.modern else _session_id(context)
        return await self._calls.ask(exchange, session_id, name, arguments)


async def _named_faults(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Name the field of a call that the SDK would refuse as `Invalid request parameters`."""
    if ctx.method == "tools/call" and isinstance(ctx.params, dict):
        name, arguments = ctx.params.get("name"), ctx.params.get("arguments")
        if not isinstance(name, str):
            raise MCPError(t.INVALID_PARAMS, "name: must be the name of a tool, a string")
        if not isinstance(arguments, dict | None):
            raise MCPError(
                t.INVALID_PARAMS,
                f"arguments: must be an object with the parameters of {name[:128]}",
            )
    return await call_next(ctx)


def _session_id(context: ServerRequestContext[Any, Any]) -> str | None:
    if context.request is None:
        return None
    found = header(context.request.scope["headers"], SESSION_HEADER)
    return None if found is None else found.decode("latin-1")


def _no_schema(_: str) -> None:
    """Skip the comparison of arguments with headers: no schema of ours mirrors any."""
    return


async def _set_level(_: object, __: object) -> t.EmptyResult:
    # Events are sent as `info` at every level: a caller that provides tools needs its requests.
    return t.EmptyResult()
