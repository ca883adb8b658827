"""Audit entries of tool calls: principal, tool, object and outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.errors import OublietteError
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
    session_id = _named(parts, "session_id")
    # Asked before the time is read: the lines of the log are in the order of their times
    project_id = _named(parts, "project_id") or await _project_of(services, parts, session_id)
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


def note_refused_key(
    services: ToolServices, token: Token, transport: Transport, session_id: str | None = None
) -> None:
    """Log that one of our keys was presented which is invalid, or invalid on this transport."""
    if services.audit is not None:
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


def _named(parts: tuple[msgspec.Struct | None, msgspec.Struct | None], field: str) -> str | None:
    """Return an id from the result, else from the parameters."""
    params, answer = parts
    for part in (answer, params):
        found = getattr(part, field, None)
        if isinstance(found, str):
            return found
    return None


async def _project_of(
    services: ToolServices,
    parts: tuple[msgspec.Struct | None, msgspec.Struct | None],
    session_id: str | None,
) -> str | None:
    made = getattr(parts[1], "id", None)
    if isinstance(made, str) and made.startswith("proj_"):  # a Project's own id
        return made
    if session_id is None:
        return None
    try:
        return (await services.owned(session_id)).project_id
    except OublietteError:
        return None  # there is no such session
