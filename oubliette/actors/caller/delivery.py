"""Delivery of a caller's events to its listeners: from memory, or from the log behind that.

Events are not queued for a listener. It asks for what follows its cursor, and is answered from the
window on the newest events, or by a read of the log if its cursor is older than that window.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from oubliette.actors.caller.event_window import RecentEvents, size_of
from oubliette.actors.caller.messages import SUPERSEDED, UNKNOWN, EventBatch
from oubliette.kit import Message
from oubliette.records import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.actors.caller.listener import Listener
    from oubliette.actors.caller.memory import CallerMemory
    from oubliette.actors.caller.messages import NextEvents
    from oubliette.kit import Actor, Deferred
    from oubliette.runtime.store.reader import Reader


MAX_KNOWN: Final = 10_000
"""Sessions of one caller that are remembered; far more than one batch of events names."""


class KnownProjects(dict[str, str]):
    """Session id → project id, as far as it was read; "" for a session that is gone."""

    async def read(self, reader: Reader, events: Iterable[Event]) -> dict[str, str]:
        """Return the project of each session that is not known yet; `learn` remembers them."""
        found: dict[str, str] = {}
        for session_id in {event.session_id for event in events} - self.keys():
            record = await reader.session(session_id)
            found[session_id] = "" if record is None else record.project_id
        return found

    def learn(self, found: dict[str, str]) -> None:
        """Remember these; if there are too many, the earlier ones have to be read again."""
        if len(self) + len(found) > MAX_KNOWN:
            self.clear()
        self.update(found)


JOIN_SECONDS: Final = 0.01
"""Seconds that notices of settled calls, which the caller knows of, wait to be sent with events."""
MAX_UNTOLD: Final = 100
"""Superseded listeners of one caller that are remembered until they ask."""
_SETTLED: Final = "caller_tool_settled"


class BacklogRead(Message):
    """From the CallerActor to itself: older events of a listener, from the log."""

    listener_id: str
    events: tuple[Event, ...]
    floor: int


class BacklogFailed(Message):
    """From the CallerActor to itself: the log could not be read for a listener."""

    listener_id: str
    reason: str


class ProjectsRead(Message):
    """From the CallerActor to itself: the projects of the sessions of a listener's events."""

    listener_id: str
    projects: dict[str, str]


class WaitExpired(Message):
    """From the CallerActor to itself: a listener has waited as long as it wanted to."""

    listener_id: str


class SettledJoined(Message):
    """From the CallerActor to itself: notices of settled calls have waited long enough."""


DELIVERY_MESSAGES: Final = (BacklogRead, ProjectsRead, SettledJoined, WaitExpired)
"""Messages for `EventDelivery.take`."""


class EventDelivery:
    """Part of a CallerActor that owns the listeners and the newest events; same lifetime."""

    def __init__(
        self,
        port: Actor,
        reader: Reader,
        memory: CallerMemory,
        *,
        principal: str,
        caller_id: str,
    ) -> None:
        self._port = port
        self._reader = reader
        self._memory = memory
        self._principal = principal
        self._caller_id = caller_id
        self._listeners: dict[str, Listener] = {}
        self._untold: dict[str, str] = {}
        """Reasons for the end of listeners that did not wait, for their next ask."""
        self._recent = RecentEvents(0)
        self._projects = KnownProjects()
        self._joining = False
        """Whether a `SettledJoined` is scheduled."""

    @property
    def head(self) -> int:
        """Seq of the newest event known."""
        return self._recent.head

    @property
    def listened(self) -> bool:
        return bool(self._listeners)

    def restart(self, last: int, early: Iterable[Event] = ()) -> None:
        """Begin another window at `last`, with the `early` events behind it."""
        self._recent = RecentEvents(max(last, self._recent.head))
        self._recent.extend(early)

    def forget(self) -> None:
        """Keep no events in memory: the log has them."""
        self._recent.forget()
        self._projects.clear()

    def committed(self, events: tuple[Event, ...]) -> None:
        """Add events that were just committed, and answer the listeners that wait for them."""
        self._recent.extend(events)
        if not self._joining and any(event.type == _SETTLED for event in events):
            self._joining = True
            self._port.after(JOIN_SECONDS, SettledJoined())
        self.serve_all()

    def _joined(self) -> None:
        """Send the notices of settled calls that have waited for other events."""
        self._joining = False
        self.serve_all()

    def take(self, message: Message) -> None:
        match message:
            case WaitExpired():
                self._wait_over(message)
            case SettledJoined():
                self._joined()
            case BacklogRead():
                self._backlog_read(message)
            case ProjectsRead():
                self._projects_read(message)
            case _:
                raise TypeError(f"{type(message).__name__} is no message about delivery")

    # ------------------------------------------------------------ listeners
    def get(self, listener_id: str) -> Listener | None:
        return self._listeners.get(listener_id)

    async def restrict(self, listener: Listener) -> None:
        """Leave out of what comes again what is not within the listener's right."""
        again = listener.again
        self._projects.learn(await self._projects.read(self._reader, again))
        listener.again = deque(e for e in again if listener.reaches(e, self._projects))

    def add(self, listener: Listener) -> None:
        self._listeners[listener.id] = listener

    def end(self, listener: Listener, reason: str) -> None:
        """Close a listener; one that waits is answered with `reason`."""
        del self._listeners[listener.id]
        self._answer(listener, (), ended=reason)

    def supersede(self, listener: Listener) -> None:
        """Close a listener that a newer one supersedes, and answer it, or its next ask, so."""
        if listener.waiting is None:  # it would open again, and supersede the newer one
            self._untold[listener.id] = SUPERSEDED
            if len(self._untold) > MAX_UNTOLD:
                del self._untold[next(iter(self._untold))]
        self.end(listener, SUPERSEDED)

    def why_ended(self, listener_id: str) -> str:
        """The reason why a listener is not open, for the one that asks."""
        return self._untold.pop(listener_id, UNKNOWN)

    def expect(self, listener: Listener, message: NextEvents, waiting: Deferred) -> None:
        """Answer `waiting` with the events that follow, at once or as soon as there are any."""
        self._answer(listener, ())
        listener.cursor = max(listener.cursor, message.after)
        listener.expect(waiting, message.max_events, message.max_bytes)
        self._serve(listener)
        if listener.waiting is not None:
            listener.timer = self._port.after(
                message.wait_seconds, WaitExpired(listener_id=listener.id)
            )

    def _wait_over(self, message: WaitExpired) -> None:
        """Answer a listener that has waited long enough with no events."""
        listener = self._listeners.get(message.listener_id)
        if listener is not None:
            listener.timer = None
            self._answer(listener, ())

    # ------------------------------------------------------------ answers
    def serve_all(self) -> None:
        """Answer each waiting listener for which there are events."""
        for listener in list(self._listeners.values()):
            self._serve(listener)

    def _serve(self, listener: Listener) -> None:
        """Answer a waiting listener with the available events, if there are any."""
        if listener.waiting is None:
            return
        if listener.waiting.done:
            self._answer(listener, ())
        elif listener.again:
            self._answer(listener, listener.take_again())
        elif listener.cursor < self._recent.floor:
            self._read_backlog(listener)
        elif listener.cursor < self._recent.head:
            found = self._recent.after(listener.cursor)
            if self._joining and listener.kind == "stream" and _only_settled(found):
                return
            if self._knows(listener, (event for event, _ in found)) and (
                events := listener.pick(found, self._projects)
            ):
                self._answer(listener, events)

    def _answer(
        self, listener: Listener, events: tuple[Event, ...] | list[Event], ended: str | None = None
    ) -> None:
        waiting, listener.waiting = listener.waiting, None
        if listener.timer is not None:
            listener.timer.cancel()
            listener.timer = None
        if waiting is None:
            return
        marked = tuple(event.seq for event in events if listener.marks(event))
        if listener.provides and events:
            self._memory.delivered = max(self._memory.delivered, listener.cursor)
        cursor = listener.cursor
        if listener.kind == "poll" and listener.again and events:
            cursor = events[-1].seq  # this listener will not fetch the rest; the next one will
        waiting.set(EventBatch(events=tuple(events), next=cursor, redelivered=marked, ended=ended))

    # ------------------------------------------------------------ reads
    def _knows(self, listener: Listener, events: Iterable[Event]) -> bool:
        """Return whether the projects of these events are known, if needed; else request them."""
        if not listener.needs_projects:
            return True
        unknown = [event for event in events if event.session_id not in self._projects]
        if unknown:
            self._port.pipe_to_self(
                self._projects.read(self._reader, unknown),
                lambda found: ProjectsRead(listener_id=listener.id, projects=found),
                lambda error: BacklogFailed(listener_id=listener.id, reason=str(error)),
            )
        return not unknown

    def _projects_read(self, message: ProjectsRead) -> None:
        """Continue with a listener now that the projects of its events are known."""
        self._projects.learn(message.projects)
        listener = self._listeners.get(message.listener_id)
        if listener is not None:
            self._serve(listener)

    def _read_backlog(self, listener: Listener) -> None:
        if listener.reading:
            return
        listener.reading = True
        floor = self._recent.floor
        self._port.pipe_to_self(
            self._reader.caller_events(
                self._principal,
                self._caller_id,
                listener.cursor,
                listener.max_events,
                listener.max_bytes,
            ),
            lambda events: BacklogRead(listener_id=listener.id, events=tuple(events), floor=floor),
            lambda error: BacklogFailed(listener_id=listener.id, reason=str(error)),
        )

    def _backlog_read(self, message: BacklogRead) -> None:
        """Answer a listener with what was read from the log, or read on."""
        listener = self._listeners.get(message.listener_id)
        if listener is None:
            return
        listener.reading = False
        if listener.waiting is None or not self._knows(listener, message.events):
            return
        events = listener.pick(
            ((event, size_of(event)) for event in message.events), self._projects
        )
        if not message.events:
            # The log holds nothing more that was committed before the read began.
            listener.cursor = max(listener.cursor, message.floor)
        if events:
            self._answer(listener, events)
        else:
            self._serve(listener)


def _only_settled(found: Iterable[tuple[Event, int]]) -> bool:
    return all(event.type == _SETTLED for event, _ in found)
