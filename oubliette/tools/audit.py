"""Audit entries of tool calls: principal, tool, object and outcome."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from oubliette import ids
from oubliette.errors import OublietteError, RateLimited
from oubliette.runtime.audit_log import AuditEntry

if TYPE_CHECKING:
    import msgspec

    from oubliette.records import Token
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext, Transport

UNAUTHENTICATED = "unauthenticated"


async def note_call(
    services: ToolServices,
    context: CallContext,
    tool: str,
    outcome: str,
    *,
    seconds: float = 0.0,
    parts: tuple[msgspec.Struct | None, msgspec.Struct | None] = (None, None),
) -> None:
    """Log a call; `parts` are its parameters and its result, as far as they exist."""
    if services.audit is None:
        return
    session_id = _named(parts, "session_id", ids.SESSION)
    # Asked before the time is read: the lines of the log are in the order of their times
    project_id = _named(parts, "project_id", ids.PROJECT)
    project_id = project_id or await _project_of(services, parts, session_id)
    services.audit.write(
        AuditEntry(
            ts=services.clock.time(),
            tool=tool,
            transport=context.transport,
            token_id=context.token_id,
            principal=context.principal,
            session_id=context.session_id,
            target_session_id=session_id,
            project_id=project_id,
            outcome=outcome,
            seconds=round(seconds, 6),
        )
    )


async def note_refused_key(
    services: ToolServices, token: Token, transport: Transport, session_id: str | None = None
) -> None:
    """Log that one of our keys was presented which is invalid, or invalid on this transport.

    The key has a rate of its own for it, above which nothing is logged.
    """
    if services.audit is None:
        return
    with contextlib.suppress(RateLimited):
        if services.rates is not None:
            await services.rates.take(f"refused:{token.id}")
        services.audit.write(
            AuditEntry(
                ts=services.clock.time(),
                tool="",
                transport=transport,
                token_id=token.id,
                principal=token.principal,
                session_id=session_id,
                outcome=UNAUTHENTICATED,
            )
        )


def _named(
    parts: tuple[msgspec.Struct | None, msgspec.Struct | None], field: str, prefix: str
) -> str | None:
    """Return an id from the result, else from the parameters; text of the caller is none."""
    params, answer = parts
    for part in (answer, params):
        found = getattr(part, field, None)
        if isinstance(found, str) and ids.is_id(found, prefix):
            return found
    return None


async def _project_of(
    services: ToolServices,
    parts: tuple[msgspec.Struct | None, msgspec.Struct | None],
    session_id: str | None,
) -> str | None:
    made = getattr(parts[1], "id", None)
    if isinstance(made, str) and ids.is_id(made, ids.PROJECT):  # a Project's own id
        return made
    if session_id is None:
        return None
    try:
        return (await services.owned(session_id)).project_id
    except OublietteError:
        return None  # there is no such session
