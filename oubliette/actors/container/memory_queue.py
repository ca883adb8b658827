"""Agents that wait for memory in a container: who waits, and the answer that each waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from oubliette.actors.container.jobs import RoomTaken
from oubliette.actors.container.memory_room import REMEDY, WAIT_SECONDS
from oubliette.actors.container.messages import StageChanged
from oubliette.errors import ContainerLost, OublietteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.container.memory_room import MemoryRoom
    from oubliette.kit import Actor, Deferred, PipedTask


class MemoryQueue:
    """Waits for memory in the container of one ContainerActor, at most one for each session.

    The actor passes on `RoomTaken` to `taken`.

    Args:
        room: memory of the container.
        actor: the actor whose mailbox gets the end of each wait.
        send: sends a session the beginning and the end of its wait.
    """

    def __init__(
        self, room: MemoryRoom, actor: Actor, send: Callable[[str, StageChanged], None]
    ) -> None:
        self._room = room
        self._actor = actor
        self._send = send
        self._waits: dict[str, tuple[PipedTask, Deferred]] = {}
        """Session id → the wait of its agent, and the answer to its Acquire."""

    def begin(self, session_id: str, need: int, answer: Deferred) -> None:
        """Wait until others have given `need` MB back; an earlier wait of the session ends."""
        self.leave(session_id)

        began = self._actor.clock.monotonic()

        def stage(
            state: Literal["progress", "done", "failed"],
            detail: str = "",
            error: str = "",
            remedy: str = "",
        ) -> None:
            elapsed = round((self._actor.clock.monotonic() - began) * 1000)
            changed = StageChanged(
                stage="memory",
                state=state,
                elapsed_ms=elapsed,
                detail=detail,
                error=error,
                remedy=remedy,
            )
            self._send(session_id, changed)

        async def take() -> bool:
            try:
                await self._room.take(session_id, need)
            except OublietteError as error:
                stage("failed", error=error.message, remedy=error.hint or "")
                answer.set_error(error)
                return False
            stage("done")
            return True

        shortage = self._room.shortage(session_id, need)
        limit = f"it waits {WAIT_SECONDS:g} s at most for others to end"
        stage("progress", detail=f"{shortage}; {limit}", remedy=REMEDY)

        waiting = self._actor.pipe_to_self(
            take(),
            lambda taken: RoomTaken(session_id=session_id, taken=taken),
            lambda _: RoomTaken(session_id=session_id, taken=False),
        )
        self._waits[session_id] = waiting, answer

    def leave(self, session_id: str) -> None:
        """End the wait of a session, if it waits, and answer it with an error."""
        if (known := self._waits.pop(session_id, None)) is not None:
            known[0].cancel()
            known[1].set_error(ContainerLost("the session does not wait for memory any more"))

    def taken(self, message: RoomTaken) -> Deferred | None:
        """Return the answer that is due now that its wait has ended; None: none is due."""
        known = self._waits.pop(message.session_id, None)
        return known[1] if known is not None and message.taken else None
