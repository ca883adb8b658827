"""What an agent asks a person for, and the denial at the deadline (DESIGN 9.19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.actors.session_messages import WriteFrame
from oubliette.kit import Message

if TYPE_CHECKING:
    from oubliette.actors.session import SessionActor

REASON = "nobody allowed it in time"


class PermissionOverdue(Message):
    """Nobody has decided by the deadline."""

    request_id: str


class Permissions:
    """Open permission requests of one session. Lives and dies with its actor."""

    def __init__(self, session: SessionActor) -> None:
        self._session = session
        self._open: set[str] = set()

    def asked(self, data: dict[str, Any], source: str) -> None:
        """The agent asks: an event to the root session's caller, with ancestry and deadline."""
        session = self._session
        request_id = str(data.get("request_id", ""))
        limit = session.services.config.sessions.permission_timeout_seconds
        self._open.add(request_id)
        session.journal.append(
            "permission_request",
            {
                **data,
                "deadline": session.clock.time() + limit,
                "ancestry": session.link.ancestry,
            },
            source=source,
        )
        session.after(limit, PermissionOverdue(request_id=request_id))

    def deny(self, request_id: str) -> None:
        """The deadline has passed."""
        if request_id not in self._open:
            return
        self._open.discard(request_id)
        session = self._session
        session.journal.append(
            "permission_settled",
            {"request_id": request_id, "decision": "deny", "reason": REASON},
        )
        session.journal.then(
            lambda: session.write(
                WriteFrame(
                    seq=session.next_seq(),
                    kind="permission",
                    request_id=request_id,
                    decision="deny",
                    text=REASON,
                )
            )
        )
