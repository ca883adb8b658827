"""Turn, the work of an agent on one message: waited for, or iterated for its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.sync.events import Events

if TYPE_CHECKING:
    from oubliette.api import turn as twins
    from oubliette.api.events.turn_result import TurnResult
    from oubliette.sync.portal_thread import PortalThread


class Turn:
    """One turn of a session. `result` waits for its `TurnResult`; iterating it gives its events.

    Both may be done any number of times, at once or later: each reads the log from the beginning
    of the turn.
    """

    def __init__(self, thread: PortalThread, twin: twins.Turn) -> None:
        self._thread = thread
        self._twin = twin
        self.session_id = twin.session_id
        self.number = twin.number
        """Number of the turn in its session, from 1."""

    def __repr__(self) -> str:
        return repr(self._twin)

    def __iter__(self) -> Events:
        """Return an iterator over the events of the turn."""
        return self.events()

    def events(self, after: int | None = None) -> Events:
        """Return an iterator over the events of the turn, or those of them after an index."""
        return Events(self._thread, self._thread.read(lambda: self._twin.events(after)))

    def result(self, timeout: float | None = None) -> TurnResult:
        """Wait for the result.

        Args:
            timeout: Seconds; None: without a limit. The turn goes on afterwards.

        Raises:
            DeadlineExceeded: the turn has not ended within `timeout`.
            SessionFailed: the turn failed; contains the reason.
            TurnInterrupted: it was interrupted.
            AgentNeverSawTools: the agent began it without the tools that came with its message.
        """
        return self._thread.call(lambda: self._twin.result(timeout))

    def interrupt(self) -> None:
        """Interrupt the running turn of the session, if one runs."""
        self._thread.call(self._twin.interrupt)
