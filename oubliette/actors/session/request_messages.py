"""Messages about the requests of a session's agent, each passed on to the router of the requests.

They come from the agent's links, from callers and children that answer, and from the owners of what
a request waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.agent_requests.call_progress import ProgressDue
from oubliette.actors.agent_requests.params import RequestInput
from oubliette.actors.agent_requests.tool_listing import ListingOverdue
from oubliette.actors.messages import AnswerCallerTool, ReportCallProgress
from oubliette.actors.open_calls import ReportCalls
from oubliette.actors.session.messages import (
    CallCounted,
    CallHeld,
    ChildSpawned,
    ChildTurnEnded,
    ClientPaired,
    IsBlocked,
    LinkAnswered,
    LinkReady,
    MapSlots,
    RequestSettled,
    RootCaller,
    ToolsNotListed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.agent_requests.router import AgentRequestRouter
    from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog
    from oubliette.actors.session.effects import Effects
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.actors.session.messages import LinkRequest
    from oubliette.actors.session.state import SessionActorState
    from oubliette.kit import Actor, Message

REQUEST_MESSAGES: Final = (
    AnswerCallerTool,
    CallHeld,
    CallCounted,
    ChildSpawned,
    ChildTurnEnded,
    ClientPaired,
    IsBlocked,
    LinkAnswered,
    LinkReady,
    ListingOverdue,
    MapSlots,
    ProgressDue,
    ReportCallProgress,
    ReportCalls,
    RequestSettled,
    RootCaller,
    ToolsNotListed,
)
"""Messages for `RequestMessages.take`."""


class RequestMessages:
    """The messages of one SessionActor about requests.

    Args:
        actor: The session's; it is asked.
        router: Router of its agent's requests.
        state: Of its turns.
        writer: Of its log.
        watchdog: Of its agent.
        apply: Carries out effects.
        active: Called when the session is not idle.
    """

    def __init__(
        self,
        actor: Actor,
        router: AgentRequestRouter,
        *,
        state: SessionActorState,
        writer: EventWriter,
        watchdog: AgentWatchdog,
        apply: Callable[[Effects], None],
        active: Callable[[], None],
    ) -> None:
        self._actor = actor
        self._router = router
        self._state = state
        self._writer = writer
        self._watchdog = watchdog
        self._apply = apply
        self._active = active

    def requested(self, message: LinkRequest, *, stopping: bool) -> None:
        self._watchdog.silence.broken(self._actor.clock.monotonic())
        self._contacted(bare=message.bare)
        given = RequestInput(record=self._writer.record, now=self._now, stopping=stopping)
        self._apply(self._router.request(message, given))

    def take(self, message: Message) -> bool | None:
        """Take one of `REQUEST_MESSAGES`; return the answer to an ask that is answered at once."""
        match message:
            case AnswerCallerTool():
                return self._answered(message)
            case ReportCallProgress():
                return self._progressed(message)
            case IsBlocked():
                return self._router.children.blocked
            case RootCaller():
                self._router.root_caller_changed(message)
            case RequestSettled() | ChildTurnEnded():
                self._active()
                self._apply(self._effects(message))
            case ListingOverdue() | ToolsNotListed() if self._state.finished:
                pass
            case ClientPaired():
                self._contacted(bare=message.bare)
            case LinkReady() | ListingOverdue() | ToolsNotListed():
                self._apply(self._listing(message))
            case _:
                self._apply(self._effects(message))
        return None

    def _effects(self, message: Message) -> Effects:
        router, now = self._router, self._now
        match message:
            case RequestSettled():
                return router.settled(message, now)
            case CallCounted():
                return router.reserved(message, self._writer.next_index)
            case MapSlots():
                return router.map_slots_known(message, now)
            case ReportCalls():
                return router.calls.report()
            case ProgressDue():
                return router.calls.progress_due(message, now)
            case CallHeld():
                return router.calls.held(message.request_id)
            case LinkAnswered():
                return router.answered_later(message)
            case ChildSpawned():
                return router.children.spawned(message, now)
            case ChildTurnEnded():
                return router.children.turn_ended(message, now)
            case _:
                raise TypeError(f"{type(message).__name__} is no message about a request")

    def _listing(self, message: LinkReady | ListingOverdue | ToolsNotListed) -> Effects:
        tools, record = self._router.tools, self._writer.record
        match message:
            case LinkReady():
                return tools.connected(message.link, record, bare=message.bare)
            case ListingOverdue():
                return tools.overdue(message)
            case ToolsNotListed():
                return tools.never_listed(record)

    @property
    def _now(self) -> float:
        return self._actor.clock.time()

    def _contacted(self, *, bare: bool) -> None:
        """Record a sign of life of the agent's client."""
        self._apply(self._watchdog.contacted(self._writer.record))
        if not bare:
            self._router.tools.client_seen()

    def _answered(self, message: AnswerCallerTool) -> bool | None:
        if not self._router.calls.accepts(message):
            return False
        self._apply(self._router.calls.answered(message, self._actor.defer()))
        return None

    def _progressed(self, message: ReportCallProgress) -> bool:
        if not self._router.calls.accepts(message):
            return False
        self._apply(self._router.calls.progressed(message, self._now))
        return True
