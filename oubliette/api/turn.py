"""Turn, the work of an agent on one message, with its result and its events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oubliette.api.errors import AgentNeverSawTools
from oubliette.api.event_iterator import EventIterator, TurnEvents
from oubliette.api.events.turn_result import TurnFold
from oubliette.contract.events import SystemEvent
from oubliette.errors import DeadlineExceeded, OublietteError

if TYPE_CHECKING:
    from collections.abc import Generator

    from oubliette.api.events.turn_result import TurnResult
    from oubliette.api.shared import ClientShared

INTERRUPT_SECONDS = 10.0


class Turn:
    """One turn of a session: the work of an agent on one message.

    Its result and its events may be read any number of times, at once or later, each time from the
    beginning of the turn.

    Awaiting it returns its `TurnResult`; iterating it, its events.

    Blocking:
        `result` waits for its `TurnResult`; iterating it gives its events.
    """

    def __init__(
        self, parts: ClientShared, session_id: str, number: int, after: int, *, lends: bool = False
    ) -> None:
        self._parts = parts
        self.session_id: str = session_id
        """Id of the session."""
        self.number: int = number
        """Number of the turn in its session, from 1."""
        self._after = after
        self._lends = lends

    def __repr__(self) -> str:
        return f"<Turn {self.number} of {self.session_id}>"

    def __await__(self) -> Generator[object, None, TurnResult]:
        """Wait for the result.

        Raises:
            SessionFailed: the turn failed; contains the reason.
            TurnInterrupted: it was interrupted.
            AgentNeverSawTools: the agent began it without the tools that came with its message.
        """
        return self.result().__await__()

    def __aiter__(self) -> TurnEvents:
        """Return an iterator over the events of the turn."""
        return self.events()

    def events(self, after: int | None = None) -> TurnEvents:
        """Return an iterator over the events of the turn, or those of them after an index."""
        self._parts.check()
        start = self._after if after is None else after
        fold = TurnFold(self.number, self.session_id)
        return TurnEvents(self._parts, self.session_id, fold, after=start)

    async def result(self, timeout: float | None = None) -> TurnResult:
        """Wait for the result.

        Args:
            timeout: Seconds; None: without a limit. The turn goes on afterwards.

        Raises:
            DeadlineExceeded: the turn has not ended within `timeout`.
            SessionFailed: the turn failed; contains the reason.
            TurnInterrupted: it was interrupted.
            AgentNeverSawTools: the agent began it without the tools that came with its message.
        """
        self._parts.check()
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._result()
        except TimeoutError as error:
            if not limit.expired() or isinstance(error, OublietteError):
                raise
            raise DeadlineExceeded(
                f"turn {self.number} of {self.session_id} has not ended within {timeout:g} s",
                hint="it goes on: wait again, or interrupt it",
            ) from None

    async def _result(self) -> TurnResult:
        fold = TurnFold(self.number, self.session_id)
        events = EventIterator(self._parts, self.session_id, after=self._after, follow=True)
        async for event in events:
            fold.add(event)
            if self._lends and _unseen(event):
                await self.interrupt()
                raise AgentNeverSawTools(
                    f"the agent of {self.session_id} began turn {self.number} without having"
                    " fetched the tools that came with its message",
                    session_id=self.session_id,
                    hint="start a session with the tools: an agent lists them when it starts",
                )
            if fold.done:
                break
        return fold.result()

    async def interrupt(self) -> None:
        """Interrupt the running turn of the session, if one runs."""
        await self._parts.call(
            "session_interrupt", {"session_id": self.session_id}, timeout=INTERRUPT_SECONDS
        )


def _unseen(event: object) -> bool:
    return isinstance(event, SystemEvent) and event.kind == "tools_not_listed"
