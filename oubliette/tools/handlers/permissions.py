"""Tools of permission requests of agents: `permission_list`, `permission_response`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from oubliette import ids
from oubliette.actors.messages import AnswerPermission
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.session import PermissionInfo
from oubliette.runtime.store import queries
from oubliette.tools.auth.permission_answers import may_answer
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.request_answers import Accepted, deliver
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.spec import PERSONS, Result, tool

if TYPE_CHECKING:
    from oubliette.runtime.store.queries.caller_requests import OpenPermission
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


MAX_TOOL_CALL: Final = 64 * field_types.KIB
"""Maximum bytes of a request's event that a listing has in full."""


class PermissionList(Params, frozen=True, kw_only=True):
    """Parameters of `permission_list`."""

    project_id: Annotated[
        field_types.ProjectId | None, Meta(description="Only requests of sessions of this project.")
    ] = None
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number to return.")] = 100


class PermissionPage(Result, frozen=True, kw_only=True):
    """Result of `permission_list`."""

    permissions: tuple[PermissionInfo, ...]
    more: Annotated[bool, Meta(description="There are newer ones, which were left out.")]


class PermissionResponse(Params, frozen=True, kw_only=True):
    """Parameters of `permission_response`."""

    session_id: Annotated[
        field_types.AnyId, Meta(description="session_id of the permission_request event.")
    ]
    request_id: Annotated[field_types.AnyId, Meta(description="request_id of that event.")]
    decision: Annotated[
        Literal["allow", "deny"], Meta(description="Whether the agent may do what it asks for.")
    ]
    remember: Annotated[
        Literal["once", "session"],
        Meta(
            description="session: apply the decision to all later requests with the same asks_for."
        ),
    ] = "once"


@tool(PermissionList, PermissionPage, scope="read", read_only=True)
async def permission_list(
    services: ToolServices, context: CallContext, params: PermissionList
) -> PermissionPage:
    """List what agents ask permission for and is not decided yet, oldest first."""
    only = context.scope.project
    if params.project_id is not None:
        only = (await visible_project(services, context, params.project_id)).id
    found = await services.reader.run(
        queries.waiting_permissions,
        only,
        params.limit + 1,
        only=context.scope.project,
        whole_bytes=MAX_TOOL_CALL,
    )
    views, _, cut = fitting(_view(context, each) for each in found[: params.limit])
    return PermissionPage(permissions=tuple(views), more=cut or len(found) > params.limit)


def _view(context: CallContext, found: OpenPermission) -> PermissionInfo:
    request = found.request
    data: dict[str, Any] = {} if found.event is None else found.event.data
    text = data.get("text")
    return PermissionInfo(
        request_id=request.id,
        session_id=request.session_id,
        project_id=found.project.id,
        index=request.event_index,
        asks_for=request.asks_for,
        text=None if text is None else str(text),
        tool_call=data.get("tool_call"),
        created_at=request.created_at,
        deadline=request.deadline,
        ancestry=tuple(found.ancestry),
        may_answer=may_answer(context, found.project, request.principal),
    )


@tool(PermissionResponse, Accepted, scope="write", transports=PERSONS, runs_on="live")
async def permission_response(
    services: ToolServices, context: CallContext, params: PermissionResponse
) -> Accepted:
    """Allow or deny what the agent of a session asks for in a permission_request event.

    The session may be a child of yours at any depth. Those may answer who started the root of its
    tree, the operator, keys of scope admin and, if its project has answers=team, all that may write
    in it. A request without an answer is denied at its deadline.
    """
    answer = AnswerPermission(
        principal=context.principal,
        request_id=params.request_id,
        decision=params.decision,
        remember=params.remember == "session",
    )

    async def settled() -> bool | None:
        request = await services.reader.permission(params.request_id)
        if request is None or request.session_id != params.session_id:
            return False
        return None if request.decision is None else request.decision == params.decision

    may = await _may_decide(services, context, params.session_id)
    return await deliver(
        services,
        context,
        params,
        answer,
        what="permission response",
        may=may,
        settled=settled,
    )


async def _may_decide(services: ToolServices, context: CallContext, session_id: str) -> bool:
    """Whether the caller may answer what this session asks for."""
    if not ids.is_id(session_id, ids.SESSION):
        return False
    record = await services.reader.session(session_id)
    project = record and await services.reader.project(record.project_id)
    if record is None or project is None:
        return False
    root = await services.reader.session(record.root_session_id or session_id)
    # A root that was removed leaves nothing but the rights of those who need not own it.
    return may_answer(context, project, "" if root is None else root.principal)
