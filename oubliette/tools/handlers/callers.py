"""Tools of callers: `caller_listen`, `caller_tool_progress` and `caller_tool_response`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from oubliette import ids
from oubliette.actors.messages import AnswerCallerTool, ReportCallProgress
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import NotFound, Unavailable
from oubliette.tools.caller_listen import CallerListen, CallerListenResult
from oubliette.tools.request_answers import Accepted, deliver
from oubliette.tools.spec import CALLERS, tool

if TYPE_CHECKING:
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MAX_ERROR: Final = 64 * field_types.KIB
MAX_PROGRESS: Final = 1000  # characters


class CallerToolResponse(Params, frozen=True, kw_only=True):
    """Parameters of `caller_tool_response`."""

    session_id: Annotated[field_types.AnyId, Meta(description="session_id of the request.")]
    request_id: Annotated[field_types.AnyId, Meta(description="request_id of the request.")]
    result: Annotated[Any, Meta(description="Result of the tool: any JSON.")] = None
    error: Annotated[
        Annotated[str, Meta(max_length=MAX_ERROR)] | None,
        Meta(description="Reason why the tool failed; takes precedence over result."),
    ] = None


class CallerToolProgressParams(Params, frozen=True, kw_only=True):
    """Parameters of `caller_tool_progress`."""

    session_id: Annotated[field_types.AnyId, Meta(description="session_id of the request.")]
    request_id: Annotated[field_types.AnyId, Meta(description="request_id of the request.")]
    message: Annotated[
        str, Meta(min_length=1, max_length=MAX_PROGRESS, description="A sentence for the agent.")
    ]


@tool(CallerListen, CallerListenResult, scope="write", transports=CALLERS, streamed=True)
async def caller_listen(
    services: ToolServices, context: CallContext, params: CallerListen
) -> CallerListenResult:
    """Receive the events of sessions started with your caller_id, including tool requests.

    A client that accepts log notifications gets events as they are written, until it disconnects.
    Any other client gets the events after `after`, or waits for the next ones, and calls again with
    after=next.
    """
    if services.listen is None:
        raise Unavailable("the server is starting", hint="try again in a second")
    return await services.listen(context, params)


@tool(CallerToolProgressParams, Accepted, scope="write", transports=CALLERS, runs_on="live")
async def caller_tool_progress(
    services: ToolServices, context: CallContext, params: CallerToolProgressParams
) -> Accepted:
    """Report progress with a caller_tool_request that is open, to the agent that waits for it.

    At most one message per second is passed on, the newest; the deadline stays.
    """
    report = ReportCallProgress(
        principal=context.principal, request_id=params.request_id, message=params.message
    )

    async def settled() -> bool | None:
        request = await services.reader.request(params.request_id)
        if request is None or request.session_id != params.session_id:
            return False
        return None if request.outcome is None else False

    may = await _may_answer(services, context, params.session_id)
    return await deliver(
        services, context, params, report, what="tool progress", may=may, settled=settled
    )


@tool(CallerToolResponse, Accepted, scope="write", transports=CALLERS, runs_on="live")
async def caller_tool_response(
    services: ToolServices, context: CallContext, params: CallerToolResponse
) -> Accepted:
    """Answer a caller_tool_request event with the result of the tool, or with an error."""
    answer = AnswerCallerTool(
        principal=context.principal,
        request_id=params.request_id,
        result=params.result,
        error=params.error,
    )

    async def settled() -> bool | None:
        request = await services.reader.request(params.request_id)
        if request is None or request.session_id != params.session_id:
            return False
        if request.outcome is None:
            return None
        return (request.result, request.error) == (answer.result, answer.error) or (
            answer.error is not None and request.error == answer.error
        )

    may = await _may_answer(services, context, params.session_id)
    return await deliver(
        services,
        context,
        params,
        answer,
        what="tool response",
        may=may,
        settled=settled,
    )


async def _may_answer(services: ToolServices, context: CallContext, session_id: str) -> bool:
    if not ids.is_id(session_id, ids.SESSION):
        return False
    try:
        owned = await services.owned(session_id)
    except NotFound:
        return False
    return owned.principal == context.principal and context.scope.reaches(owned.project_id)
