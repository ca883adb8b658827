"""Open calls of caller tools, counted by principal: `callers.max_pending_requests` limits them."""

from __future__ import annotations


class OpenCallCounts:
    """Counts of the open calls of each session; the limit applies to its principal."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def set(self, principal: str, session_id: str, count: int) -> None:
        """Record how many calls a session has open."""
        sessions = self._counts.setdefault(principal, {})
        sessions.pop(session_id, None)
        if count:
            sessions[session_id] = count
        elif not sessions:
            del self._counts[principal]

    def total(self, principal: str) -> int:
        """Return the number of open calls over all sessions of a principal."""
        return sum(self._counts.get(principal, {}).values())

    def __len__(self) -> int:
        """Return the number of principals with an open call."""
        return len(self._counts)
