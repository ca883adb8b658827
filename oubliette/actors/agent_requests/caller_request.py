"""Actor of one pending call of a caller's tool, which ends it if no answer comes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from oubliette.actors.messages import (
    CallerDisconnected,
    OpenCaller,
    TrackRequest,
    UntrackRequest,
    caller_actor_name,
)
from oubliette.actors.session.messages import CallHeld, RequestSettled, StopRequest
from oubliette.actors.store.outages import tell_running_since
from oubliette.kit import Actor, LocalMessage, Message, handles

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.records import CallerRequest


HELD_SECONDS: Final = 1.0
"""Time after its deadline after which a call that waits for the storage is reported as held."""


class _DeadlinePassed(Message):
    pass


class _CallersServed(Message):
    """Callers can be served now, for the first time since the server's start."""


class _StillAway(Message):
    """Time to report again that the call waits for the storage."""


class _StoreRuns(LocalMessage):
    since: float
    """Wall second of the end of the latest outage of the storage."""


class _CallerOpened(Message):
    name: str


class _CallerUnavailable(Message):
    reason: str


class CallerRequestActor(Actor):
    """Waits for the first of: the caller's absence, the deadline, the end by the session itself.

    A caller cannot answer while nothing can be stored, nor before the server serves callers: the
    call gets its whole time after that.
    """

    def __init__(
        self, context: ActorContext, session: Ref, request: CallerRequest, *, adopted: bool
    ) -> None:
        super().__init__()
        self._session = session
        self._context = context
        self._request = request
        self._adopted = adopted
        self._settled = False
        self._awaits_storage = False

    async def on_start(self) -> None:
        """Begin, once the caller can be served."""
        served = self._context.callers_served
        if not math.isinf(served.since):
            self._begin(max(0.0, self._request.deadline - self.clock.time()))
            return
        self.pipe_to_self(served.wait(), lambda _: _CallersServed(), lambda _: _CallersServed())

    @handles(_CallersServed)
    def _callers_served(self, _: _CallersServed) -> None:
        if not self._settled:
            self._adopted = True  # its caller could not listen until now, as after a restart
            self._begin(self._context.config.sessions.caller_tool_timeout_seconds)

    def _begin(self, seconds: float) -> None:
        """Start the deadline and ask the caller's actor to watch its presence."""
        self.after(seconds, _DeadlinePassed())
        name = caller_actor_name(self._request.principal, self._request.caller_id)
        if self.system.lookup(name) is not None:
            self._track(name)
            return
        callers = self.system.ref("callers")
        self.pipe_to_self(
            callers.ask(
                OpenCaller(principal=self._request.principal, caller_id=self._request.caller_id)
            ),
            lambda opened: _CallerOpened(name=opened),
            lambda error: _CallerUnavailable(reason=str(error)),
        )

    def _track(self, name: str) -> None:
        grace = self._context.config.callers.restart_grace_seconds
        if not self._adopted:
            grace = max(0.0, self._context.callers_served.since + grace - self.clock.monotonic())
        self.system.ref(name).tell(
            TrackRequest(
                request_id=self._request.id,
                session_id=self._request.session_id,
                reply_to=self.name,
                durable=self._request.durable,
                adopted=self._adopted,
                grace=grace,
            )
        )

    @handles(_CallerOpened)
    def _opened(self, message: _CallerOpened) -> None:
        self._track(message.name)

    @handles(_CallerUnavailable)
    def _unavailable(self, message: _CallerUnavailable) -> None:
        self._settle("caller_gone", error=f"the caller cannot be reached: {message.reason}")

    @handles(StopRequest)
    def _over(self, _: StopRequest) -> None:
        self._settled = True
        self.stop()

    @handles(CallerDisconnected)
    def _lost(self, message: CallerDisconnected) -> None:
        self._settle("caller_gone", error=message.reason)

    @handles(_DeadlinePassed)
    def _deadline(self, _: _DeadlinePassed) -> None:
        if self._settled:
            return
        self._awaits_storage = True
        self.after(HELD_SECONDS, _StillAway())
        store = self._context.store
        tell_running_since(self, store, lambda since: _StoreRuns(since=since))

    @handles(_StillAway)
    def _still_away(self, message: _StillAway) -> None:
        """Have the agent wait on: its client expects an answer some time after the deadline."""
        if self._awaits_storage and not self._settled:
            self._session.tell(CallHeld(request_id=self._request.id))
            self.after(self._seconds, message)

    @property
    def _seconds(self) -> float:
        return self._request.deadline - self._request.created_at

    @handles(_StoreRuns)
    def _overdue(self, message: _StoreRuns) -> None:
        """End the call, unless its caller could not answer in all of its time."""
        self._awaits_storage = False
        seconds = self._seconds
        left = message.since + seconds - self.clock.time()
        if message.since > self._request.created_at and left > 0:
            self.after(left, _DeadlinePassed())
            return
        self._settle("timeout", error=f"the caller did not answer within {seconds:.0f} seconds")

    def _settle(self, outcome: str, *, error: str) -> None:
        if self._settled:
            return
        self._settled = True
        self._session.tell(
            RequestSettled(request_id=self._request.id, outcome=outcome, error=error)
        )
        self.stop()

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        del reason, error
        name = caller_actor_name(self._request.principal, self._request.caller_id)
        if (caller := self.system.lookup(name)) is not None and caller.is_alive():
            caller.tell(UntrackRequest(request_id=self._request.id))
