"""Delivery of an answer to the session that asked, across restarts of its actor and the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from oubliette import ids
from oubliette.errors import NotFound
from oubliette.kit import ActorDead
from oubliette.tools.spec import Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.kit import Message
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

ASK_SECONDS: Final = 30.0
NOT_OPEN: Final = "request not found or already resolved"
"""Error message for a request that is unknown, settled, of another principal, or has an invalid
id."""

_log = structlog.get_logger("oubliette.tools")


class Accepted(Result, frozen=True, kw_only=True):
    """Result of `caller_tool_progress`, `caller_tool_response` and `permission_response`."""

    accepted: bool


class RequestReference(Protocol):
    """Parameters that name a request of a session."""

    @property
    def session_id(self) -> str: ...

    @property
    def request_id(self) -> str: ...


async def deliver(
    services: ToolServices,
    context: CallContext,
    asked: RequestReference,
    answer: Message,
    *,
    what: str,
    may: bool,
    settled: Callable[[], Awaitable[bool | None]],
) -> Accepted:
    """Deliver `answer` to the session with the open request.

    Args:
        services: The parts of the server.
        context: The call with the answer.
        asked: The request.
        answer: A message to the SessionActor, which replies whether it accepted it.
        what: Kind of the answer, for the log if the request is not open.
        may: Whether the principal may answer it.
        settled: State of the request in the store: None while it is open; True if it was settled
            by this very answer; else False.

    Raises:
        NotFound: `NOT_OPEN`.
    """
    if may and await _delivered(services, asked.session_id, answer, settled):
        return Accepted(accepted=True)
    _log.info(
        "request not open",
        answer=what,
        session_id=ids.shown(asked.session_id),
        request_id=ids.shown(asked.request_id),
        principal=context.principal,
    )
    raise NotFound(NOT_OPEN)


async def _delivered(
    services: ToolServices,
    session_id: str,
    answer: Message,
    settled: Callable[[], Awaitable[bool | None]],
) -> bool:
    ref = services.session_ref(session_id)
    if ref is None and services.appears is not None and await settled() is None:
        # This server has just started, and sent the request before the session's actor was up.
        await services.appears(session_id)
        ref = services.session_ref(session_id)
    if ref is None:
        return False
    try:
        taken: Any = await ref.ask(answer)
        return bool(taken)
    except ActorDead:
        pass  # its actor failed and restarts, with the state of the store
    known = await settled()
    if known is not None:
        return known
    try:
        return await services.ask_session(session_id, answer, ASK_SECONDS)
    except (ActorDead, NotFound):
        return False
