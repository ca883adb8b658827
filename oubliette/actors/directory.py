"""Who runs which session: the one table that turns an id from outside into an actor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oubliette.kit import Ref


class Directory:
    """Live SessionActors by session id. Each enters itself, and leaves when it ends."""

    def __init__(self) -> None:
        self._sessions: dict[str, Ref] = {}

    def enter(self, session_id: str, ref: Ref) -> None:
        """`ref` runs this session from now on."""
        self._sessions[session_id] = ref

    def leave(self, session_id: str, ref: Ref) -> None:
        """`ref` ended; a successor that has entered since stays."""
        if self._sessions.get(session_id) is ref:
            del self._sessions[session_id]

    def session(self, session_id: str) -> Ref | None:
        """The actor that runs this session, if it is live."""
        ref = self._sessions.get(session_id)
        return ref if ref is not None and ref.is_alive() else None

    def __len__(self) -> int:
        return len(self._sessions)
