"""One listener of a caller: a cursor on the log, never a queue."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from oubliette.actors.caller.event_window import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from oubliette.kit import ActorTimer, Deferred
    from oubliette.records import Event

TOOL_REQUEST = "caller_tool_request"
PERMISSION_REQUEST = "permission_request"
REQUESTS = frozenset({TOOL_REQUEST, PERMISSION_REQUEST})


class Listener:
    """Position of a listener, the events that it gets again, and the ask that waits for more."""

    def __init__(
        self,
        identity: str,
        *,
        provides: bool,
        kind: Literal["stream", "poll"],
        cursor: int,
        backlog: int,
        delivered: int,
        open_requests: frozenset[str],
        again: Iterable[Event] = (),
        project_id: str | None = None,
    ) -> None:
        self.id = identity
        self.provides = provides
        self.kind = kind
        self.cursor = cursor
        self.backlog = backlog
        """Seq up to which requests count only if they are still open."""
        self.delivered = delivered
        """Seq up to which a request may have been delivered before."""
        self.open_requests = open_requests
        self.again: deque[Event] = deque(again)
        """Open requests from before the cursor, delivered first."""
        self.project_id = project_id
        """Project that its right is restricted to; None: no restriction."""
        self.left_out: AbstractSet[str] = frozenset[str]()
        """Projects whose requests go to providers that are restricted to them."""
        self.waiting: Deferred | None = None
        self.timer: ActorTimer | None = None
        self.max_events = 0
        self.max_bytes = 0
        self.reading = False
        """Whether a read of the log is under way."""

    def wants(self, event: Event) -> bool:
        if event.type not in REQUESTS:
            return True
        if not self.provides:  # it may look, but not run tools that another listener provides
            return event.type == PERMISSION_REQUEST
        return event.seq > self.backlog or event.data.get("request_id") in self.open_requests

    @property
    def needs_projects(self) -> bool:
        """Whether it depends on the projects of events which of them it gets."""
        return self.project_id is not None or bool(self.left_out)

    def reaches(self, event: Event, projects: Mapping[str, str]) -> bool:
        """Return whether the event is within the listener's right, and no other's to answer."""
        if not self.needs_projects:
            return True
        project = projects.get(event.session_id)
        if self.project_id is not None:
            return project == self.project_id
        return event.type not in REQUESTS or project not in self.left_out

    def marks(self, event: Event) -> bool:
        """Whether the event carries `redelivered`."""
        return event.type in REQUESTS and event.seq <= self.delivered

    def take_again(self) -> list[Event]:
        """Return the next open requests that come again, up to the caps; at least one if any."""
        taken: list[Event] = []
        room = self.max_bytes
        while self.again and len(taken) < self.max_events:
            room -= size_of(self.again[0])
            if taken and room < 0:
                break
            taken.append(self.again.popleft())
        return taken

    def pick(self, events: Iterable[tuple[Event, int]], projects: Mapping[str, str]) -> list[Event]:
        """Return the following events that it receives, up to the caps, and move the cursor.

        `projects` maps the session of each event to its project, if this listener is bound to one.
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
        """Record an ask that waits for the next batch."""
        self.waiting = waiting
        self.max_events = max_events
        self.max_bytes = max_bytes
