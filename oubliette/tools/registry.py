"""The table of all tools, and the function that calls them for every transport."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.contract import json_schema, validation
from oubliette.errors import (
    Forbidden,
    NotFound,
    NotHere,
    OublietteError,
    ProjectMoves,
    Unauthenticated,
    Unavailable,
)
from oubliette.ids import shown
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.store.codec import encode
from oubliette.tools.audit import note_call
from oubliette.tools.call_at_home import call_at_home
from oubliette.tools.container_rights import check_container
from oubliette.tools.handlers import (
    callers,
    containers,
    event_list,
    events,
    files,
    images,
    limits,
    permissions,
    ports,
    projects,
    session_end,
    session_interrupt,
    session_map,
    session_spawn,
    sessions,
    tokens,
    trees,
    usage,
    workspaces,
)
from oubliette.tools.handlers.repository import (
    repositories,
    session_compare,
    session_diff,
    session_export,
    session_fork,
    session_log,
    session_merge,
    session_push,
    session_restore,
)
from oubliette.tools.schema.tool_result import failure, success
from oubliette.tools.user_rights import check_users

if TYPE_CHECKING:
    import msgspec

    from oubliette.tools.auth.scopes import Scope
    from oubliette.tools.schema.tool_result import ToolResult
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext, Tool, Transport

_log = structlog.get_logger("oubliette.tools")

MORE_HOMES: Final = 5
"""Further machines that a new project is offered to; each time another one took the last room."""
MOVE_SECONDS: Final = 20.0
"""Time for which a call waits for a project that is on its way to another machine."""

_TOOLS: Final = (
    projects.project_create,
    projects.project_list,
    projects.project_get,
    projects.project_update,
    projects.project_delete,
    projects.project_options,
    repositories.repository_fetch,
    repositories.repository_branches,
    containers.container_start,
    containers.container_stop,
    containers.container_exec,
    containers.container_logs,
    images.container_refresh,
    images.container_snapshot,
    images.image_rebuild,
    session_spawn.session_spawn,
    session_spawn.session_message,
    session_map.session_map,
    session_interrupt.session_interrupt,
    session_end.session_end,
    sessions.session_get,
    sessions.session_list,
    events.session_events,
    events.event_read,
    event_list.event_list,
    session_log.session_log,
    session_diff.session_diff,
    session_compare.session_compare,
    session_export.session_export,
    session_restore.checkpoint,
    session_restore.session_restore,
    session_fork.session_fork,
    session_merge.session_merge,
    session_push.session_push,
    session_end.session_cleanup,
    workspaces.workspace_list,
    workspaces.workspace_delete,
    files.file_list,
    files.file_read,
    files.file_write,
    files.file_delete,
    ports.port_open,
    ports.port_close,
    ports.port_list,
    trees.tree_list,
    trees.tree_get,
    limits.config_limits,
    usage.usage_report,
    tokens.token_create,
    tokens.token_list,
    tokens.token_revoke,
    callers.caller_listen,
    callers.caller_tool_progress,
    callers.caller_tool_response,
    permissions.permission_list,
    permissions.permission_response,
)

TABLE: Final[dict[str, Tool]] = {tool.name: tool for tool in _TOOLS}
"""All tools by name, in the order in which they are listed."""


def input_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments; read-only."""
    return validation.schema_of(tool.params)


def output_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's structured result; read-only."""
    return _result_schema(tool.result)


@cache
def _result_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return json_schema.object_schema(kind)


async def prepare_schemas() -> None:
    """Build all schemas, one at a time, so that no listing has to block the loop for all.

    It runs in the loop's thread: msgspec must not inspect a Struct in two threads at once.
    """
    for tool in TABLE.values():
        for of in (input_schema, output_schema):
            of(tool)
            await asyncio.sleep(0)


def listed(scope: Scope, at: Transport) -> list[Tool]:
    """The tools that a key of this scope sees on this transport, in constant order."""
    return [tool for tool in TABLE.values() if tool.allowed(scope, at)]


async def call(
    services: ToolServices, context: CallContext, name: str, arguments: dict[str, Any] | None
) -> ToolResult:
    """Call a tool, on whichever machine of a cluster has to carry it out.

    A failure of the tool is an answer with the remedy, and so is the end of the caller's key.

    Raises:
        NotFound: there is no such tool on this transport.
    """
    tool = find(context, name)
    try:
        async with services.keys.while_good(context.token_id):
            return await _call(services, context, tool, arguments)
    except Unauthenticated as error:
        return failure(error)


async def _call(
    services: ToolServices, context: CallContext, tool: Tool, arguments: dict[str, Any] | None
) -> ToolResult:
    async def wherever() -> ToolResult:
        result = await call_at_home(services, context, tool, arguments)
        if result is None:
            result = await _carried_out(services, context, tool, arguments)
        return result

    if services.nodes is None:
        return await _carried_out(services, context, tool, arguments)
    try:
        result = await ask_with_retry(wherever, ProjectMoves, seconds=MOVE_SECONDS)
        for _ in range(MORE_HOMES if tool.runs_on == "new" else 0):
            if result.code != NotHere.code:
                break  # otherwise others took the room there, and nothing was done
            result = await wherever()
    except Exception as error:
        return failure(_shown(error, tool))
    return result


async def call_here(
    services: ToolServices, context: CallContext, name: str, arguments: dict[str, Any] | None
) -> ToolResult:
    """Call a tool on this machine; otherwise as `call`.

    Raises:
        NotFound: there is no such tool on this transport.
        ProjectMoves: its project is on its way to another machine; nothing was done.
    """
    return await _carried_out(services, context, find(context, name), arguments)


async def _carried_out(
    services: ToolServices, context: CallContext, tool: Tool, arguments: dict[str, Any] | None
) -> ToolResult:
    try:
        return success(encode(await carry_out(services, context, tool, arguments)))
    except ProjectMoves:
        raise
    except Exception as error:
        return failure(_shown(error, tool))


def find(context: CallContext, name: str) -> Tool:
    """The tool of this name.

    Raises:
        NotFound: there is none on this transport.
    """
    tool = TABLE.get(name)
    if tool is None or context.transport not in tool.transports:
        raise NotFound(f"there is no tool {shown(name)}", hint="tools/list shows the tools")
    return tool


async def carry_out(
    services: ToolServices, context: CallContext, tool: Tool, arguments: dict[str, Any] | None
) -> msgspec.Struct:
    """Call a tool, and return its result as it is, for callers in this process.

    Raises:
        OublietteError: the tool failed; contains the remedy.
    """
    began = services.clock.monotonic()
    params = answer = None
    outcome = "cancelled"
    try:
        _check_scope(tool, context)
        params = validation.decode(tool.params, arguments, tool.name)
        await check_users(services, context, tool, params)
        await check_container(services, context, tool, params)
        answer = await tool.handler(services, context, params)
        outcome = "ok"
        return answer
    except Exception as error:
        shown_error = _shown(error, tool)
        outcome = shown_error.code
        if shown_error is error:
            raise
        raise shown_error from error
    finally:
        seconds = services.clock.monotonic() - began
        _log.debug(
            "tool called",
            tool=tool.name,
            transport=context.transport,
            outcome=outcome,
            seconds=seconds,
        )
        parts = (params, answer)
        await note_call(services, context, tool.name, outcome, seconds=seconds, parts=parts)


def _shown(error: Exception, tool: Tool) -> OublietteError:
    if isinstance(error, ActorDead):
        away = error.code == "peer_gone"  # its class is not loaded where there is one machine
        reason = f": {error.reason}" if error.reason else ""
        restarted = f"the part that does this was restarted before it answered{reason}"
        return Unavailable(
            error.message if away else restarted,
            hint="look whether it was done, then try again",
        )
    if isinstance(error, OublietteError):
        return error
    _log.error("tool failed", tool=tool.name, exc_info=error)
    return OublietteError("internal error", hint="the server's log has the details")


def _check_scope(tool: Tool, context: CallContext) -> None:
    if not tool.allowed(context.scope, context.transport):
        needed = f"the scope {tool.scope}" + (" without a project" if tool.unbound else "")
        raise Forbidden(
            "tool not allowed for this token scope",
            hint=f"{tool.name} needs {needed}, this key has {context.scope}",
        )
