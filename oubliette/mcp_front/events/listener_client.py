"""ListenerClient, a listener's connection to its CallerActor across restarts of that actor."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from oubliette.actors.caller.messages import (
    UNKNOWN,
    CallerState,
    CloseListener,
    EventBatch,
    GetCaller,
    ListenerOpened,
    NextEvents,
    OpenListener,
)
from oubliette.actors.messages import OpenCaller, caller_actor_name
from oubliette.errors import Unavailable
from oubliette.ids import new_uuid
from oubliette.kit import ActorDead, AskTimeout, MailboxFull
from oubliette.kit.retry import ask_with_retry

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from oubliette.kit import Message, Ref
    from oubliette.records import CallerTool

RESTART_TIMEOUT: Final = 5.0
"""Seconds for a CallerActor to start again."""
_SLACK: Final = 10.0  # seconds that an ask lasts longer than the wait in it


class ListenerClient:
    """Connection of one listener to the current incarnation of its caller's actor."""

    def __init__(
        self,
        callers: Ref,
        find: Callable[[str], Ref],
        principal: str,
        caller_id: str,
        project_id: str | None,
    ) -> None:
        self.principal = principal
        self.caller_id = caller_id
        self.project_id = project_id
        """Project to which its key is bound."""
        self.listener_id = new_uuid()
        self.ended: str | None = None
        """Reason given to `close`; None: it was not closed."""
        self.cursor = 0
        """Cursor of what its client has; set by the owner."""
        self._callers = callers
        self._ref = find(caller_actor_name(principal, caller_id))
        self._mode: Literal["provide", "observe"] = "provide"
        self._kind: Literal["stream", "poll"] = "stream"

    async def _ask(self, message: Message, timeout: float = RESTART_TIMEOUT) -> object:
        """Ask the actor; start it, or wait for its restart.

        Raises:
            Unavailable: the actor did not start (again) in time.
        """

        async def once() -> object:
            if not self._ref.is_alive():
                opened = OpenCaller(principal=self.principal, caller_id=self.caller_id)
                await self._callers.ask(opened)
            return await self._ref.ask(message, timeout)

        try:
            if self._ref.is_alive():
                # Every pushed event is asked for here: a deadline around it costs as much as it
                with contextlib.suppress(ActorDead):
                    return await self._ref.ask(message, timeout)
            async with asyncio.timeout(RESTART_TIMEOUT + timeout):
                return await ask_with_retry(once, seconds=RESTART_TIMEOUT)
        except (TimeoutError, AskTimeout, ActorDead) as error:
            why = error.reason if isinstance(error, ActorDead) else None
            raise Unavailable(
                f"caller {self.caller_id} cannot be served now" + (f": {why}" if why else "")
            ) from error

    async def state(self) -> CallerState:
        state = await self._ask(GetCaller())
        assert isinstance(state, CallerState)
        return state

    async def open(
        self,
        *,
        after: int | None,
        provide: bool,
        stream: bool,
        tools: tuple[CallerTool, ...] | None = None,
        again: bool = False,
    ) -> ListenerOpened:
        """Begin to listen; with `again` open requests from before `after` are delivered too."""
        self._mode = "provide" if provide else "observe"
        self._kind = "stream" if stream else "poll"
        opened = await self._ask(
            OpenListener(
                listener_id=self.listener_id,
                mode=self._mode,
                kind=self._kind,
                after=after,
                again=again,
                tools=tools,
                project_id=self.project_id,
            )
        )
        assert isinstance(opened, ListenerOpened)
        return opened

    async def next(self, cursor: int, wait: float, max_bytes: int) -> EventBatch:
        """Return the events after `cursor`; open the listener again if the actor was restarted."""
        if self.ended is not None:
            return EventBatch(events=(), next=cursor, ended=self.ended)
        message = NextEvents(
            listener_id=self.listener_id, after=cursor, max_bytes=max_bytes, wait_seconds=wait
        )
        batch = await self._ask(message, wait + _SLACK)
        assert isinstance(batch, EventBatch)
        if batch.ended == UNKNOWN and self.ended is None:
            await self.open(
                after=cursor, provide=self._mode == "provide", stream=self._kind == "stream"
            )
            return EventBatch(events=(), next=cursor)
        return batch

    def close(self, reason: str, *, orderly: bool = False) -> None:
        """End the listener; a pending `next` returns the reason. The first reason counts."""
        if self.ended is None:
            self.ended = reason
            try:
                self._ref.tell(
                    CloseListener(listener_id=self.listener_id, reason=reason, orderly=orderly)
                )
            except MailboxFull:
                # The actor is behind; the next `next` ends because `ended` is set, presence when
                # the actor restarts.
                return
