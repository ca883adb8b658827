"""Calls of tools that another machine of a cluster has to carry out, from the asking side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from oubliette import ids
from oubliette.errors import NotFound, ProjectMoves
from oubliette.ids import new_uuid
from oubliette.kit import ActorDead, MailboxFull
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.store.codec import encode
from oubliette.tools.home_nodes import CALLS, CancelForwardedCall, ForwardedCall, ProgressReceiver
from oubliette.tools.spec import CallerIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.kit import Ref
    from oubliette.tools.home_nodes import HomeNodes
    from oubliette.tools.schema.tool_result import ToolResult
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext, Tool

ATTEMPTS: Final = 3
"""Homes that are tried for one call; a project moves only while nothing of it lives."""
MOST_SECONDS: Final = 24 * 3600.0
"""Deadline of the answer, for a machine that has forgotten the call. Tools have shorter deadlines
of their own, and the end of the machine is noticed at once."""
RETRY_SECONDS: Final = 10.0
"""Time for which a call that may be repeated waits for a machine that starts again."""


async def call_at_home(
    services: ToolServices,
    context: CallContext,
    tool: Tool,
    arguments: dict[str, Any] | None,
) -> ToolResult | None:
    """Have a call carried out at the home of its project; None: this machine has to do it.

    Raises:
        ProjectMoves: the project is on its way to another machine; nothing was done.
        OublietteError: no machine can take the project.
        ActorDead: its machine was lost before it answered.
    """
    nodes = services.nodes
    # A call that is refused anyway is refused here, by the same code, and gives no project a home.
    if (
        nodes is None
        or tool.runs_on == "local"
        or not tool.allowed(context.scope, context.transport)
    ):
        return None
    if tool.runs_on == "new":
        node = await nodes.home_of_new(arguments or {})
        return None if node is None else await _ask(nodes, node, context, tool, arguments, None)
    project_id = await project_of(services, context, arguments or {})
    if project_id is None:
        return None
    for _ in range(ATTEMPTS):
        node = await nodes.home(project_id, needed=tool.runs_on == "needed")
        if node is None:
            return None
        try:
            result = await _ask(nodes, node, context, tool, arguments, project_id)
        except ActorDead:  # the project may have another home by the next call
            nodes.forget(project_id)
            raise
        if result is not None:
            return result
        nodes.forget(project_id)
    raise project_moves(project_id)


async def project_of(
    services: ToolServices, context: CallContext, arguments: Mapping[str, Any]
) -> str | None:
    """The existing project that a call concerns, if the key reaches it."""
    session_id, project_id = arguments.get("session_id"), arguments.get("project_id")
    if isinstance(session_id, str) and ids.is_id(session_id, ids.SESSION):
        try:
            project_id = (await services.owned(session_id)).project_id
        except NotFound:
            return None
    elif isinstance(project_id, str) and ids.is_id(project_id, ids.PROJECT):
        project = await services.reader.project(project_id)
        if project is None or project.deleted_at is not None:
            return None
    else:
        return None
    return project_id if context.scope.reaches(project_id) else None


async def _ask(  # noqa: PLR0917 - the call, and where it goes
    nodes: HomeNodes,
    node: str,
    context: CallContext,
    tool: Tool,
    arguments: dict[str, Any] | None,
    project_id: str | None,
) -> ToolResult | None:
    ref = nodes.ref(node, CALLS)
    receiver = None
    if context.progress is not None:
        name = f"progress/{new_uuid()}"
        receiver = nodes.system.spawn(ProgressReceiver, context.progress, name=name)
    call = ForwardedCall(
        call_id=new_uuid(),
        tool=tool.name,
        arguments=encode(arguments),
        caller=identity(context),
        project_id=project_id,
        progress_to=None if receiver is None else (nodes.name, receiver.name),
    )
    repeatable = tool.read_only or (
        tool.idempotent and (arguments or {}).get("idempotency_key") is not None
    )
    try:
        if repeatable:
            answer = await ask_with_retry(
                lambda: ref.ask(call, MOST_SECONDS), seconds=RETRY_SECONDS
            )
        else:
            answer = await ref.ask(call, MOST_SECONDS)
    except asyncio.CancelledError:
        _cancel(ref, call.call_id)
        raise
    finally:
        if receiver is not None:
            await receiver.stop()
    if answer.moves:
        nodes.forget(project_id or "")
        raise project_moves(project_id)
    return answer.result


def project_moves(project_id: str | None) -> ProjectMoves:
    return ProjectMoves(f"project {project_id} is moving to another node", hint="try again")


def identity(context: CallContext) -> CallerIdentity:
    """The part of a context that crosses to another machine."""
    return CallerIdentity(
        **{name: getattr(context, name) for name in CallerIdentity.__struct_fields__}
    )


def _cancel(ref: Ref, call_id: str) -> None:
    try:
        ref.tell(CancelForwardedCall(call_id=call_id))
    except (ActorDead, MailboxFull):
        return  # it continues, and its answer is dropped
