"""Tool that decides about permission requests of agents: `permission_response`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from oubliette import ids
from oubliette.actors.messages import AnswerPermission
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import NotFound
from oubliette.tools.request_answers import Accepted, deliver
from oubliette.tools.spec import CALLERS, tool

if TYPE_CHECKING:
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


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


@tool(PermissionResponse, Accepted, scope="write", transports=CALLERS, home="live")
async def permission_response(
    services: ToolServices, context: CallContext, params: PermissionResponse
) -> Accepted:
    """Allow or deny what the agent of a session asks for in a permission_request event.

    The session may be a child of yours at any depth. A request without an answer is denied at its
    deadline.
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
    """Whether the caller owns the root of this session's tree, and the key reaches its project."""
    if not ids.is_id(session_id, ids.SESSION):
        return False
    record = await services.reader.session(session_id)
    if record is None or not context.scope.reaches(record.project_id):
        return False
    try:
        root = await services.owned(record.root_session_id or session_id)
    except NotFound:
        return False
    return root.principal == context.principal
