"""A listener's way to its CallerActor, over restarts of that actor."""

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
"""Seconds for a CallerActor to be there again."""
_SLACK: Final = 10.0  # seconds that an ask outlives the wait in it


class ListenerClient:
    """One listener of one caller, wherever its actor lives now."""

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
        """Where the right of its key ends."""
        self.listener_id = new_uuid()
        self.ended: str | None = None
        """Why it was told to end, if it was."""
        self._callers = callers
        self._ref = find(caller_actor_name(principal, caller_id))
        self._mode: Literal["lend", "observe"] = "lend"
        self._kind: Literal["stream", "poll"] = "stream"

    async def _ask(self, message: Message, timeout: float = RESTART_TIMEOUT) -> object:
        """Ask the actor; starts it, or waits for its restart.

        Raises:
            Unavailable: it did not come (back) in time.
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
            raise Unavailable(f"caller {self.caller_id} cannot be served now") from error

    async def state(self) -> CallerState:
        """How the caller stands."""
        state = await self._ask(GetCaller())
        assert isinstance(state, CallerState)
        return state

    async def open(
        self,
        *,
        after: int | None,
        lend: bool,
        stream: bool,
        tools: tuple[CallerTool, ...] | None = None,
        again: bool = False,
    ) -> ListenerOpened:
        """Begin to listen; with `again` also to open requests from before `after`."""
        self._mode = "lend" if lend else "observe"
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
        """What follows `cursor`; opens again where a restarted actor does not know it."""
        if self.ended is not None:
            return EventBatch(events=(), next=cursor, ended=self.ended)
        message = NextEvents(
            listener_id=self.listener_id, after=cursor, max_bytes=max_bytes, wait_seconds=wait
        )
        batch = await self._ask(message, wait + _SLACK)
        assert isinstance(batch, EventBatch)
        if batch.ended == UNKNOWN and self.ended is None:
            await self.open(after=cursor, lend=self._mode == "lend", stream=self._kind == "stream")
            return EventBatch(events=(), next=cursor)
        return batch

    def close(self, reason: str, *, orderly: bool = False) -> None:
        """End the listener; whoever waits in `next` is told why. The first reason counts."""
        if self.ended is None:
            self.ended = reason
            try:
                self._ref.tell(
                    CloseListener(listener_id=self.listener_id, reason=reason, orderly=orderly)
                )
            except MailboxFull:
                # It is behind; the next `next` ends by `ended`, presence by the actor's restart.
                return
