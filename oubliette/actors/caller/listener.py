"""One listener of a caller: a cursor on the log, never a queue."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from oubliette.actors.caller.event_window import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oubliette.kit import ActorTimer, Deferred
    from oubliette.records import Event

TOOL_REQUEST = "caller_tool_request"
PERMISSION_REQUEST = "permission_request"
REQUESTS = frozenset({TOOL_REQUEST, PERMISSION_REQUEST})


class Listener:
    """Where a listener stands, what it still gets again, and who waits for more."""

    def __init__(
        self,
        identity: str,
        *,
        lends: bool,
        kind: Literal["stream", "poll"],
        cursor: int,
        backlog: int,
        told: int,
        open_requests: frozenset[str],
        again: Iterable[Event] = (),
        project_id: str | None = None,
    ) -> None:
        self.id = identity
        self.lends = lends
        self.kind = kind
        self.cursor = cursor
        self.backlog = backlog
        """Up to this seq, requests count only where they are open still."""
        self.told = told
        """Up to this seq, a request may have been told before."""
        self.open_requests = open_requests
        self.again: deque[Event] = deque(again)
        """Open requests from before the cursor, told first."""
        self.project_id = project_id
        """Where its right ends; None: nowhere."""
        self.waiting: Deferred | None = None
        self.timer: ActorTimer | None = None
        self.max_events = 0
        self.max_bytes = 0
        self.reading = False
        """Whether a read of the log is on its way."""

    def wants(self, event: Event) -> bool:
        """Whether it is told of this event."""
        if event.type not in REQUESTS:
            return True
        if not self.lends:  # it may look, but not run tools that somebody else lends
            return event.type == PERMISSION_REQUEST
        return event.seq > self.backlog or event.data.get("request_id") in self.open_requests

    def reaches(self, event: Event, projects: Mapping[str, str]) -> bool:
        """Whether the event is within the right of whoever listens."""
        return self.project_id is None or projects.get(event.session_id) == self.project_id

    def marks(self, event: Event) -> bool:
        """Whether the event carries `redelivered`."""
        return event.type in REQUESTS and event.seq <= self.told

    def take_again(self) -> list[Event]:
        """The next open requests that come again, up to the caps; at least one if any is left."""
        taken: list[Event] = []
        room = self.max_bytes
        while self.again and len(taken) < self.max_events:
            room -= size_of(self.again[0])
            if taken and room < 0:
                break
            taken.append(self.again.popleft())
        return taken

    def pick(self, events: Iterable[tuple[Event, int]], projects: Mapping[str, str]) -> list[Event]:
        """What of the following events it is told, up to the caps; moves the cursor past it.

        `projects` says where each session of the events belongs, if this listener is bound to one.
        """
        taken: list[Event] = []
        room = self.max_bytes
        for event, size in events:
            if event.seq <= self.cursor:
                continue
            if self.wants(event) and self.reaches(event, projects):
                room -= size
                if taken and (room < 0 or len(taken) >= self.max_events):
                    break
                taken.append(event)
            self.cursor = event.seq
        return taken

    def expect(self, waiting: Deferred, max_events: int, max_bytes: int) -> None:
        """Somebody waits for the next batch."""
        self.waiting = waiting
        self.max_events = max_events
        self.max_bytes = max_bytes
