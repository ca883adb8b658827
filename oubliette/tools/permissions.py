"""What agents ask permission for, decided by who owns the root of their tree (DESIGN 9.19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import structlog
from msgspec import Meta

from oubliette import ids
from oubliette.actors.protocol import AnswerPermission
from oubliette.errors import NotFound
from oubliette.kit import ActorDead
from oubliette.tools import fields
from oubliette.tools.callers import NOT_OPEN, Accepted
from oubliette.tools.tool import HTTP_ONLY, Params, tool

if TYPE_CHECKING:
    from oubliette.records import PermissionRequest
    from oubliette.tools.house import House
    from oubliette.tools.tool import CallContext

ASK_SECONDS: Final = 30.0

_log = structlog.get_logger("oubliette.tools")


class PermissionResponse(Params, frozen=True, kw_only=True):
    """Parameters of `permission_response`."""

    session_id: Annotated[
        fields.SessionId, Meta(description="session_id of the permission_request event.")
    ]
    request_id: Annotated[
        str, Meta(min_length=1, max_length=200, description="request_id of that event.")
    ]
    decision: Annotated[
        Literal["allow", "deny"], Meta(description="Whether the agent may do what it asks for.")
    ]
    remember: Annotated[
        Literal["once", "session"],
        Meta(description="session: for all that it asks for of this kind, asks_for, from now on."),
    ] = "once"


@tool(PermissionResponse, Accepted, scope="write", doors=HTTP_ONLY)
async def permission_response(
    house: House, context: CallContext, params: PermissionResponse
) -> Accepted:
    """Allow or deny what the agent of a session asks for in a permission_request event.

    The session may be a child of yours at any depth; what nobody decides is denied at its deadline.
    """
    if await _may_decide(house, context, params.session_id) and await _decided(
        house, context, params
    ):
        return Accepted(accepted=True)
    _log.info(
        "decision on no open request",
        session_id=params.session_id,
        request_id=ids.shown(params.request_id),
        principal=context.principal,
    )
    raise NotFound(NOT_OPEN)


async def _may_decide(house: House, context: CallContext, session_id: str) -> bool:
    """Whether the root of this session's tree is theirs, and the key reaches its project."""
    record = await house.reader.session(session_id)
    if record is None or not context.scope.reaches(record.project_id):
        return False
    try:
        root = await house.owned(record.root_session_id or session_id)
    except NotFound:
        return False
    return root.principal == context.principal


async def _decided(house: House, context: CallContext, params: PermissionResponse) -> bool:
    answer = AnswerPermission(
        principal=context.principal,
        request_id=params.request_id,
        decision=params.decision,
        remember=params.remember == "session",
    )
    ref = house.session_ref(params.session_id)
    if ref is None and house.appears is not None:
        request = await _request(house, params)
        if request is not None and request.decision is None:
            # This server has just started, and the session's actor is not up yet.
            await house.appears(params.session_id)
            ref = house.session_ref(params.session_id)
    if ref is None:
        return False
    try:
        return await ref.ask(answer)
    except ActorDead:
        pass  # it failed and starts anew, with what is in the store
    request = await _request(house, params)
    if request is None:
        return False
    if request.decision is not None:
        return request.decision == params.decision  # by this very answer, before it failed
    try:
        return await house.ask_session(params.session_id, answer, ASK_SECONDS)
    except (ActorDead, NotFound):
        return False


async def _request(house: House, params: PermissionResponse) -> PermissionRequest | None:
    request = await house.reader.permission(params.request_id)
    if request is None or request.session_id != params.session_id:
        return None
    return request
