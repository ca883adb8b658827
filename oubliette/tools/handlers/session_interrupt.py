"""Tool that interrupts the running turn of a session: `session_interrupt`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.messages import InterruptSession
from oubliette.tools.handlers.sessions import SessionOne, visible_session
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

INTERRUPT_SECONDS: Final = 30.0


class SessionStatus(Result, frozen=True, kw_only=True):
    """Result of `session_interrupt` and `session_end`."""

    session_id: str
    status: str


@tool(SessionOne, SessionStatus, scope="write", runs_on="live")
async def session_interrupt(
    services: ToolServices, context: CallContext, params: SessionOne
) -> SessionStatus:
    """Interrupt the running turn of a session; the session stays. No running turn is no error."""
    session = await visible_session(services, context, params.session_id)
    status: str = session.status
    if services.session_ref(session.id) is not None:
        status = await services.ask_session(session.id, InterruptSession(), INTERRUPT_SECONDS)
    return SessionStatus(session_id=session.id, status=status)
