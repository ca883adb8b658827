"""PresenceWatch, which notifies the actors that wait for a caller's answer of its absence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.caller.memory import TrackedRequest
from oubliette.actors.caller.messages import CallerChanged
from oubliette.actors.caller.shared_row import (
    BoardAnswered,
    BoardDue,
    BoardFailed,
    BoardPlaces,
    SharedRow,
)
from oubliette.actors.messages import CallerDisconnected
from oubliette.errors import OublietteError
from oubliette.kit import MailboxFull, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.caller.listener import Listener
    from oubliette.actors.caller.memory import CallerMemory
    from oubliette.actors.caller.presence import PresenceByReach
    from oubliette.actors.caller_board import CallerBoard, SharedCaller
    from oubliette.actors.messages import TrackRequest
    from oubliette.kit import Actor, ActorTimer

log = structlog.get_logger("oubliette.callers")

BOARD_MESSAGES: Final = (BoardAnswered, BoardDue, BoardFailed, BoardPlaces, CallerChanged)
"""Messages for `PresenceWatch.take`: the state of the caller on the other nodes of a cluster."""


class CheckPresence(Message):
    """From the CallerActor to itself: the caller may be absent by now."""


class PresenceWatch:
    """Part of a CallerActor for the presence of its caller; same lifetime.

    Args:
        port: The actor.
        presence: Presence of the caller.
        memory: Requests that wait for it.
        key: Principal and id of the caller.
        board: Where the nodes of a cluster share what they know of it; None: there is one node.
        on_superseded: Called when another node has a newer provider than this one, with the project
            that its key is bound to; None: to none.
    """

    def __init__(
        self,
        port: Actor,
        presence: PresenceByReach,
        memory: CallerMemory,
        *,
        key: tuple[str, str],
        board: CallerBoard | None,
        on_superseded: Callable[[str | None], object],
    ) -> None:
        self._port = port
        self._presence = presence
        self._memory = memory
        self._key = key
        self._board = board
        self._on_superseded = on_superseded
        self._rows: dict[str | None, SharedRow] = {}
        """The caller's places on the board, by the project that keys are bound to."""
        self._unread = False
        """Whether it is unknown which places there are: the board did not answer."""
        self.row(None)
        self._timer: ActorTimer | None = None

    def _now(self) -> float:
        return self._port.clock.monotonic()

    # ------------------------------------------------------------ the board
    def row(self, project_id: str | None) -> SharedRow | None:
        """Return the caller's place for keys that are bound to a project; None: there is one node.

        Args:
            project_id: The project; None: keys that are bound to none.
        """
        if self._board is None:
            return None
        if project_id not in self._rows:
            self._rows[project_id] = SharedRow(
                self._port,
                self._board,
                self._presence.of(project_id),
                self._memory,
                key=self._key,
                project_id=project_id,
                on_superseded=lambda: self._on_superseded(project_id),
            )
        return self._rows[project_id]

    async def begin(self) -> SharedCaller | None:
        """Read the caller's places for the first time; return that of keys bound to no project."""
        if self._board is None:
            return None
        projects: list[str] = []
        try:
            projects = await self._board.projects(*self._key)
        except OublietteError:
            self._unread = True  # they are read once the board is back
        first = await self._rows[None].begin()
        for project_id in projects:
            if (row := self.row(project_id)) is not None:
                await row.begin()
        return first

    def provided_elsewhere(self) -> frozenset[str]:
        """The projects whose newest provider by a bound key is one of another node."""
        return frozenset(each for each, row in self._rows.items() if each and row.superseded)

    def look(self, then: Callable[[], object], project_id: str | None = None) -> None:
        """Read the board, then call `then`; at once if there is none, or it does not answer.

        Args:
            then: Called once.
            project_id: A project whose bound keys matter; the places that are known do anyway.
        """
        self.row(project_id)
        rows = dict(self._rows)
        left = len(rows)

        def read() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()
                if project_id is not None and rows[project_id].empty:
                    self._rows.pop(project_id, None)
                    self._presence.pop(project_id, None)

        if not rows:
            then()
        for row in rows.values():
            row.look(read)

    def _read_places(self) -> None:
        if self._board is not None:
            self._port.pipe_to_self(
                self._board.projects(*self._key),
                lambda projects: BoardPlaces(projects=tuple(projects)),
                lambda _: BoardPlaces(projects=None),
            )

    # ------------------------------------------------------------ listeners
    def take(self, message: Message) -> None:
        """Take one of `BOARD_MESSAGES`; no effect where there is one node."""
        if self._board is None:
            return
        match message:
            case CallerChanged(change=None):
                for row in self._rows.values():
                    row.changed(None)
                self._read_places()
            case CallerChanged():
                if (row := self.row(message.project_id)) is not None:
                    row.changed(message.change)
            case BoardPlaces():
                self._unread = message.projects is None
                for project_id in message.projects or ():
                    if project_id not in self._rows and (row := self.row(project_id)) is not None:
                        row.changed(None)
            case BoardAnswered() | BoardFailed() | BoardDue():
                self._take_answer(message)
            case _:
                raise TypeError(f"{type(message).__name__} is no message about the board")

    def _take_answer(self, message: BoardAnswered | BoardFailed | BoardDue) -> None:
        row = self._rows.get(message.project_id)
        if row is None:  # forgotten meanwhile: there was nothing in it
            return
        match message:
            case BoardAnswered():
                row.answered(message)
                self.watch()
                if self._unread:
                    self._unread = False  # until that fails, too
                    self._read_places()
            case BoardFailed():
                row.failed(message)
            case BoardDue():
                row.due()

    def opened(self, listener: Listener) -> None:
        self._presence.of(listener.project_id).opened(listener.id, stream=listener.kind == "stream")

    def superseded(self, listener: Listener) -> None:
        """Record that a newer provider replaced this one."""
        self._presence.of(listener.project_id).superseded(listener.id)
        self.watch()

    def closed(self, listener: Listener, *, orderly: bool) -> None:
        presence = self._presence.of(listener.project_id)
        presence.closed(listener.id, self._now(), orderly=orderly)
        if (row := self.row(listener.project_id)) is not None:
            row.closed(orderly=orderly)
        self.watch()

    def seen(self) -> None:
        """Record a sign of life."""
        self._presence.of(None).seen(self._now())
        if (row := self.row(None)) is not None:
            row.compare()
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
        self._memory.tracked.pop(request_id, None)

    def check(self) -> None:
        """Notify the actors that have waited long enough for a caller that is absent."""
        now = self._now()
        absent = not self._presence.present(now) and bool(self._memory.lost(now))
        if absent and self._unsure:
            self.watch()
        elif absent and self._board is not None:
            self._cancel()
            self.look(self._tell_lost)  # it may have come back on another node
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
        reason = f"caller {self._key[1]} is not connected: {self._presence.reason}"
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
        return max((row.unsure_seconds for row in self._rows.values()), default=0.0)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
