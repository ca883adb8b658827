"""SharedRow, which keeps what a CallerActor knows and what all nodes know of its caller alike.

It compares the two each time that one of them has changed, and writes what the nodes have to know.
One question to the board is under way at a time. While the board does not answer, the actor goes
on with what it knows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.caller_board import SharedCaller
from oubliette.errors import OublietteError
from oubliette.kit import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from oubliette.actors.caller.memory import CallerMemory
    from oubliette.actors.caller.presence import CallerPresence
    from oubliette.actors.caller_board import CallerBoard
    from oubliette.kit import Actor, ActorTimer
    from oubliette.records import CallerTool


class BoardAnswered(Message):
    """From the CallerActor to itself: state of the caller on the board."""

    project_id: str | None
    """Project that the keys of this place are bound to; None: to none."""
    row: SharedCaller | None
    opened: bool
    """Whether it was asked to open a provider."""


class BoardFailed(Message):
    """From the CallerActor to itself: the board did not answer."""

    project_id: str | None
    reason: str


class BoardDue(Message):
    """From the CallerActor to itself: time to compare with the board again."""

    project_id: str | None


class BoardPlaces(Message):
    """From the CallerActor to itself: the projects for whose bound keys the board has places."""

    projects: tuple[str, ...] | None
    """None: the board did not answer."""


RETRY_SECONDS: Final = 5.0
"""Time until the board is asked again after it did not answer."""
_LONGER: Final = 0.25
"""Part of the grace of a poller by which presence must change to be written for that alone."""
_NODE_SILENT: Final = "its node does not answer"

log = structlog.get_logger("oubliette.callers")


class SharedRow:
    """Part of a CallerActor for its caller's place on the board, for keys of one reach.

    Args:
        port: The actor.
        board: The board.
        presence: Presence of the caller by such keys, as the actor knows it.
        memory: Tools of the caller, and what it has received.
        key: Principal and id of the caller.
        project_id: Project that the keys are bound to; None: to none.
        on_superseded: Called when another node has a newer provider than this one.
    """

    def __init__(
        self,
        port: Actor,
        board: CallerBoard,
        presence: CallerPresence,
        memory: CallerMemory,
        *,
        key: tuple[str, str],
        project_id: str | None,
        on_superseded: Callable[[], object],
    ) -> None:
        self._port = port
        self._board = board
        self._presence = presence
        self._memory = memory
        self._key = (*key, project_id or "")
        self._project_id = project_id
        self._on_superseded = on_superseded
        self._row: SharedCaller | None = None
        self._row_until = -math.inf
        """Time until which the caller is present according to the board."""
        self._generation = 0
        """Number of the provider that is open here; 0: the board does not know of it."""
        self._stream = False
        """Whether that is a stream."""
        self._release_at = -math.inf
        self._tools_unsaved = False
        self._asking = False
        self._anew = False
        """Whether the board has to be read although no change of this caller was notified."""
        self._heard = 0
        """Number of the latest change that was notified."""
        self._away = False
        """Whether the board did not answer; it is left alone for a while."""
        self._head = 0
        self._timer: ActorTimer | None = None
        self._waiting: list[Callable[[], object]] = []
        """Called after the question that is under way."""
        self._asked: list[Callable[[], object]] = []
        """Called after the next question."""

    async def begin(self) -> SharedCaller | None:
        """Read the caller's state for the first time; return it if it is there and can be read."""
        try:
            row = await self._board.read(*self._key)
        except OublietteError as error:
            self._failed(error.message)
            return None
        if row is not None and self._mine(row):
            # An earlier actor had this provider, whose listener has the time to come back.
            self._presence.seen(self._now())
        self._take(row, opened=False)
        self.compare()
        return row

    # ------------------------------------------------------------ what happens here
    async def open(self, *, stream: bool, head: int) -> None:
        """Record a new provider, before it is open; see `superseded` for the outcome."""
        self._head = head
        row = self._row
        stands = row is not None and self._mine(row) and self._generation == row.generation
        if stands and not stream and not self._stream:
            return  # the poll before it has only just ended, and was not released yet
        self._stream = stream
        self._generation = 0
        try:
            row = await self._open()
        except OublietteError as error:
            self._failed(error.message)
        else:
            self._take(row, opened=True)

    @property
    def empty(self) -> bool:
        """Whether nothing is known of the caller by such keys, here or on the board."""
        known = self._row is not None or self._presence.known or self._tools_unsaved
        return not (known or self._asking)

    @property
    def superseded(self) -> bool:
        """Whether the newest provider is one of another node."""
        row = self._row
        return not self._away and row is not None and row.held and row.node != self._board.node

    def closed(self, *, orderly: bool) -> None:
        """Record that the provider has ended; a poll that ends in order has time to come again."""
        wait = 0.0 if self._stream or not orderly else self._longer
        self._release_at = self._now() + wait
        self.compare()

    def tools_changed(self) -> None:
        """Record that the caller's tools were replaced here; `compare` or `open` writes them."""
        row = self._row
        mine = self._memory.provided(self._project_id)
        self._tools_unsaved = mine is not None and (row is None or row.tools != mine)

    @property
    def unsure_seconds(self) -> float:
        """Time for which the caller may live on another node although the board has no sign of it.

        While the board does not answer, this is the time until it is asked again.
        """
        return RETRY_SECONDS if self._away else self._board.unsure_seconds

    # ------------------------------------------------------------ what happens on the board
    def look(self, then: Callable[[], object]) -> None:
        """Read the board, then call `then`; at once while the board does not answer."""
        if self._away:
            then()
            return
        self._asked.append(then)
        self.compare()

    def changed(self, change: int | None) -> None:
        """Take the notice of a change with this number; None: anything may have changed."""
        if change is None:
            self._away = False
            self._anew = True
        else:
            self._heard = max(self._heard, change)
        self.compare()

    def answered(self, message: BoardAnswered) -> None:
        self._asking = False
        self._away = False
        if message.row is None:
            self._heard = 0
        self._take(message.row, opened=message.opened)
        self._compare_and_call()

    def failed(self, message: BoardFailed) -> None:
        """Go on without the board for now."""
        self._asking = False
        self._failed(message.reason)
        self._compare_and_call()

    def due(self) -> None:
        """Compare with the board again."""
        self._timer = None
        self._away = False
        self.compare()

    # ------------------------------------------------------------ the comparison
    def _compare_and_call(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._away:
            waiting += self._asked
            self._asked = []
        self.compare()
        for then in waiting:
            then()

    def _take(self, row: SharedCaller | None, *, opened: bool) -> None:
        known = self._row
        if row is None or (known is not None and row.change < known.change):
            return
        self._row = row
        now = self._now()
        self._row_until = now + row.seconds
        if row.tools is not None and not self._tools_unsaved:
            self._memory.provide(self._project_id, row.tools)
        if self._mine(row):
            if opened or self._presence.held:
                self._generation = row.generation
            if opened and row.delivered is not None:
                self._memory.delivered = max(self._memory.delivered, row.delivered)
            self._presence.newest_here()
            return
        later = known is not None and (
            row.generation != known.generation or (known.held and not self._mine(known))
        )
        reason = _NODE_SILENT if row.held else row.reason
        self._presence.shared(now, self._row_until, reason, held=row.held, later=later)
        newer = row.generation > self._generation and (opened or self._generation > 0)
        if self._presence.held and newer:
            self._on_superseded()

    def compare(self) -> None:
        """Ask the board the next question, if there is one."""
        if self._asking or self._away:
            return
        question = self._question()
        if question is None:
            return
        self._asking = True
        self._anew = False
        self._waiting += self._asked
        self._asked = []
        work, opened = question
        self._port.pipe_to_self(
            work,
            lambda row: BoardAnswered(project_id=self._project_id, row=row, opened=opened),
            lambda error: BoardFailed(project_id=self._project_id, reason=str(error)),
        )

    def _question(self) -> tuple[Coroutine[None, None, SharedCaller | None], bool] | None:
        """Return what is to be asked next, and whether it opens a provider."""
        now, row = self._now(), self._row
        mine = row is not None and self._mine(row)
        presence = self._presence
        if self._anew or self._heard > (0 if row is None else row.change):
            return self._board.read(*self._key), False
        if presence.held and not mine:
            return self._open(), True
        if row is not None and mine and not presence.held:
            if now >= self._release_at:
                return self._release(row.generation), False
            self._wait(self._release_at - now)
        if self._tools_unsaved or (not mine and self._lives_longer(now)):
            return self._note(now), False
        if self._asked:
            return self._board.read(*self._key), False
        return None

    def _lives_longer(self, now: float) -> bool:
        """Whether a sign of life here makes it present for longer than the board has it."""
        presence = self._presence
        if presence.held or presence.held_elsewhere(now) or not presence.present(now):
            return False
        return presence.until() - self._row_until > self._longer

    def _open(self) -> Coroutine[None, None, SharedCaller]:
        presence = self._presence
        tools = self._unsaved_tools()
        return self._board.open(
            *self._key,
            grace=presence.stream_grace if self._stream else presence.poll_grace,
            tools=tools,
            delivered=self._memory.delivered,
            head=self._head,
        )

    def _release(self, generation: int) -> Coroutine[None, None, SharedCaller | None]:
        return self._board.release(
            *self._key,
            generation,
            seconds=max(0.0, self._presence.until() - self._now()),
            reason=self._presence.reason,
            delivered=self._memory.delivered,
        )

    def _note(self, now: float) -> Coroutine[None, None, SharedCaller]:
        presence = self._presence
        seconds = presence.until() - now if self._lives_longer(now) else 0.0
        tools = self._unsaved_tools()
        return self._board.note(*self._key, seconds=seconds, reason=presence.reason, tools=tools)

    def _unsaved_tools(self) -> tuple[CallerTool, ...] | None:
        """The tools that are to be written now, if any."""
        unsaved, self._tools_unsaved = self._tools_unsaved, False
        return self._memory.provided(self._project_id) if unsaved else None

    def _failed(self, reason: str) -> None:
        log.warning("caller not shared with the other nodes now", caller=self._key, reason=reason)
        self._away = True
        self._anew = True
        self.tools_changed()
        self._wait(RETRY_SECONDS)

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._port.after(seconds, BoardDue(project_id=self._project_id))

    def _mine(self, row: SharedCaller) -> bool:
        return row.held and row.node == self._board.node

    @property
    def _longer(self) -> float:
        return self._presence.poll_grace * _LONGER

    def _now(self) -> float:
        return self._port.clock.monotonic()
