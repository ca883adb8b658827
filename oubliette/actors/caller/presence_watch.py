"""PresenceWatch, which notifies the actors that wait for a caller's answer of its absence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog

from oubliette.actors.caller.board_messages import BoardAnswered, BoardDue, BoardFailed, BoardPort
from oubliette.actors.caller.memory import TrackedRequest
from oubliette.actors.caller.messages import CallerChanged
from oubliette.actors.caller.shared_row import SharedRow
from oubliette.actors.messages import CallerDisconnected
from oubliette.kit import MailboxFull, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.caller.listener import Listener
    from oubliette.actors.caller.memory import CallerMemory
    from oubliette.actors.caller.presence import CallerPresence
    from oubliette.actors.caller_board import CallerBoard
    from oubliette.actors.messages import TrackRequest
    from oubliette.kit import ActorTimer, Ref

log = structlog.get_logger("oubliette.callers")

BOARD_MESSAGES: Final = (BoardAnswered, BoardDue, BoardFailed, CallerChanged)
"""Messages for `PresenceWatch.take`: the state of the caller on the other nodes of a cluster."""


class CheckPresence(Message):
    """From the CallerActor to itself: the caller may be absent by now."""


class ActorNames(Protocol):
    """The names of a System."""

    def ref(self, name: str) -> Ref: ...


class PresencePort(BoardPort, Protocol):
    """A CallerActor, as its PresenceWatch uses it."""

    @property
    def system(self) -> ActorNames:
        """The System of the actor."""
        ...


class PresenceWatch:
    """Part of a CallerActor for the presence of its caller; same lifetime.

    Args:
        port: The actor.
        presence: Presence of the caller.
        memory: Requests that wait for it.
        key: Principal and id of the caller.
        board: Where the nodes of a cluster share what they know of it; None: there is one node.
        on_superseded: Called when another node has a newer provider than this one.
    """

    def __init__(
        self,
        port: PresencePort,
        presence: CallerPresence,
        memory: CallerMemory,
        *,
        key: tuple[str, str],
        board: CallerBoard | None,
        on_superseded: Callable[[], object],
    ) -> None:
        self._port = port
        self._presence = presence
        self._memory = memory
        self._caller_id = key[1]
        self.shared = (
            None
            if board is None
            else SharedRow(port, board, presence, memory, key=key, on_superseded=on_superseded)
        )
        """The caller's place on the board."""
        self._timer: ActorTimer | None = None

    def _now(self) -> float:
        return self._port.clock.monotonic()

    # ------------------------------------------------------------ listeners
    def take(self, message: Message) -> None:
        """Take one of `BOARD_MESSAGES`; no effect where there is one node."""
        shared = self.shared
        if shared is None:
            return
        match message:
            case CallerChanged():
                shared.changed(message.change)
            case BoardAnswered():
                shared.answered(message)
                self.watch()
            case BoardFailed():
                shared.failed(message)
            case BoardDue():
                shared.due()
            case _:
                raise TypeError(f"{type(message).__name__} is no message about the board")

    def opened(self, listener: Listener) -> None:
        """Record that a provider is open."""
        self._presence.opened(listener.id, stream=listener.kind == "stream")

    def superseded(self, listener: Listener) -> None:
        """Record that a newer provider replaced this one."""
        self._presence.superseded(listener.id)
        self.watch()

    def closed(self, listener: Listener, *, orderly: bool) -> None:
        """Record that the provider has ended."""
        self._presence.closed(listener.id, self._now(), orderly=orderly)
        if self.shared is not None:
            self.shared.closed(orderly=orderly)
        self.watch()

    def seen(self) -> None:
        """Record a sign of life."""
        self._presence.seen(self._now())
        if self.shared is not None:
            self.shared.compare()
        self.watch()

    # ------------------------------------------------------------ requests
    def track(self, message: TrackRequest) -> None:
        """Notify the actor of this request when the caller is absent, at once if it is now."""
        # A caller that was absent since the server's start may be on its way back from the last
        # one.
        grace = message.grace if message.adopted or not self._presence.known else 0.0
        self._memory.tracked[message.request_id] = TrackedRequest(
            message.reply_to, message.durable, self._now() + grace
        )
        self.check()

    def untrack(self, request_id: str) -> None:
        """Forget a request that was settled."""
        self._memory.tracked.pop(request_id, None)

    def check(self) -> None:
        """Notify the actors that have waited long enough for a caller that is absent."""
        now = self._now()
        absent = not self._presence.present(now) and bool(self._memory.lost(now))
        if absent and self._unsure:
            self.watch()
        elif absent and self.shared is not None:
            self._cancel()
            self.shared.look(self._tell_lost)  # it may have come back on another node
        elif absent:
            self._tell_lost()
        else:
            self.watch()

    def _tell_lost(self) -> None:
        now = self._now()
        if not self._presence.present(now) and not self._unsure:
            for request_id, tracked in self._memory.lost(now).items():
                del self._memory.tracked[request_id]
                self._tell(tracked)
        self.watch()

    def _tell(self, tracked: TrackedRequest) -> None:
        reason = f"caller {self._caller_id} is not connected: {self._presence.reason}"
        try:
            self._port.system.ref(tracked.reply_to).tell(CallerDisconnected(reason=reason))
        except MailboxFull:
            log.warning(
                "loss of a caller not reported", caller=self._port.name, to=tracked.reply_to
            )

    def watch(self) -> None:
        """Set the timer to the next time at which a change of presence may have to be reported."""
        self._cancel()
        if self._presence.held:
            return
        due = self._memory.next_loss(self._presence.until())
        if due is None:
            return
        wait = max(0.0, due - self._now(), self._unsure)
        self._timer = self._port.after(wait, CheckPresence())

    @property
    def _unsure(self) -> float:
        """Seconds for which its absence cannot be known, nor recorded: the database is away."""
        return 0.0 if self.shared is None else self.shared.unsure_seconds

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
