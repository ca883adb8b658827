"""What an agent asks a person for, and the denial at the deadline (DESIGN 9.19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.actors.session_messages import WriteFrame
from oubliette.kit import Message

if TYPE_CHECKING:
    import sqlite3

    from oubliette.actors.session import SessionActor

REASON: Final = "nobody allowed it in time"
_ASKED: Final = "permission_request"
_SETTLED: Final = "permission_settled"


class PermissionOverdue(Message):
    """Nobody has decided by the deadline."""

    request_id: str


class Permissions:
    """Permission requests of one session's turn. Lives and dies with its actor.

    A decision is in the log before the agent hears of it, and is told again to an agent that is
    attached again: whether it heard is not known, and it takes the first one.
    """

    def __init__(self, session: SessionActor) -> None:
        self._session = session
        self._open: set[str] = set()
        self._denied: set[str] = set()

    async def take_over(self) -> None:
        """Find what an earlier actor left open, and what its agent may not have been told."""
        session = self._session
        for kind, data in await session.services.reader.run(_of_turn, session.session_id):
            request_id = str(data.get("request_id", ""))
            if kind == _SETTLED:
                self._open.discard(request_id)
                self._denied.add(request_id)
            else:
                self._open.add(request_id)
                left = max(0.0, float(data["deadline"]) - session.clock.time())
                session.after(left, PermissionOverdue(request_id=request_id))

    def attached(self) -> None:
        """The agent is attached again."""
        for request_id in sorted(self._denied):
            self._tell(request_id)

    def turn_ended(self) -> None:
        """Nobody waits for a decision any more."""
        self._open.clear()
        self._denied.clear()

    def asked(self, data: dict[str, Any], source: str) -> None:
        """The agent asks: an event to the root session's caller, with ancestry and deadline."""
        session = self._session
        request_id = str(data.get("request_id", ""))
        limit = session.services.config.sessions.permission_timeout_seconds
        self._open.add(request_id)
        session.journal.append(
            _ASKED,
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
            _SETTLED, {"request_id": request_id, "decision": "deny", "reason": REASON}
        )

        def denied() -> None:
            self._denied.add(request_id)
            if session.attached:
                self._tell(request_id)

        session.journal.then(denied)

    def _tell(self, request_id: str) -> None:
        session = self._session
        session.write(
            WriteFrame(
                seq=session.next_seq(),
                kind="permission",
                request_id=request_id,
                decision="deny",
                text=REASON,
            )
        )


def _of_turn(connection: sqlite3.Connection, session_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The permission events since the last turn's end, in order."""
    rows = connection.execute(
        "SELECT type, data FROM events INDEXED BY events_by_session WHERE session_id = ?1"
        " AND idx > coalesce((SELECT idx FROM events INDEXED BY events_by_session"
        " WHERE session_id = ?1 AND type = 'completion' ORDER BY idx DESC LIMIT 1), -1)"
        " AND type IN (?2, ?3) ORDER BY idx",
        (session_id, _ASKED, _SETTLED),
    )
    return [(kind, msgspec.json.decode(data)) for kind, data in rows.fetchall()]
