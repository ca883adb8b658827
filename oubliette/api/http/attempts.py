"""Attempts at a call: how one of them fails, and for how long others follow.

A server that is restarted is away for a second or two, and what it had acknowledged is kept. So a
program should not notice, where a second request does no harm: the first may have been carried out
although its answer was lost.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

    from oubliette.errors import OublietteError

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
FIRST_PAUSE: Final = 0.1  # seconds at most; each following pause may be twice as long
LONGEST_PAUSE: Final = 5.0  # seconds
_log = logging.getLogger("oubliette.http")

Kind = Literal["refused", "lost", "unavailable", "unstored"]


class AttemptFailed(Exception):
    """Failure of one attempt, which the next one may not have.

    Args:
        error: The error of the call, if no other attempt follows.
        kind: `refused`: the server did not take the request, which may be sent again, of any
            kind. `lost`: the request was sent, and there is no answer. `unavailable`: the answer is
            that a part of the server does not answer, as that of a server that stops. `unstored`:
            the server waits for its database, or for room on its disk.
        pause: Seconds that the server wants clients to wait.
    """

    def __init__(self, error: OublietteError, kind: Kind, *, pause: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.kind = kind
        self.pause = pause
        self.most = math.inf
        """Seconds after which no other attempt follows, from the first failure."""


class Outage:
    """Policy of one call: which failures are followed by another attempt, when, and until when.

    Args:
        seconds: Limit from the first failure of an outage; 0 for one attempt only.
        repeatable: Whether the request may be sent again although it may have been carried out.
    """

    def __init__(self, seconds: float, *, repeatable: bool) -> None:
        self._seconds = seconds
        self._repeatable = repeatable
        self._since = -math.inf
        self._until = -math.inf
        self._is_new = True
        self._begun = 0.0
        self._was_unavailable = False

    async def endure(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that has one.

        Raises:
            OublietteError: the error of the last attempt.
        """
        try:
            if self._seconds <= 0:
                return await attempt()
            return await self._retry(attempt)
        except AttemptFailed as failed:
            raise failed.error from failed.__cause__

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        from tenacity import AsyncRetrying, retry_if_exception, wait_random_exponential

        pause = wait_random_exponential(FIRST_PAUSE, LONGEST_PAUSE)
        retrying = AsyncRetrying(
            retry=retry_if_exception(self._may_pass),
            wait=lambda state: pause(state) + _asked_pause(state),
            stop=self._is_over,
            sleep=anyio.sleep,
            reraise=True,
        )

        async def begin() -> T:
            self._begun = anyio.current_time()
            return await attempt()

        return await retrying(begin)

    def _may_pass(self, error: BaseException) -> bool:
        """Note a failure; return whether another attempt may follow."""
        if not isinstance(error, AttemptFailed):
            return False
        now = anyio.current_time()
        # One that lasted longer than connecting may take had a server, and has lost it now.
        lasted = now - self._begun > CONNECT_SECONDS and error.kind != "unstored"
        self._is_new = lasted or self._until == -math.inf
        if self._is_new:
            self._since, self._until = now, now + self._seconds
        # A server that stops answers so once and is gone; one that stays may do so for hours.
        again = not (error.kind == "unavailable" and self._was_unavailable)
        self._was_unavailable = error.kind == "unavailable"
        return again and (self._repeatable or error.kind == "refused")

    def _is_over(self, state: RetryCallState) -> bool:
        failed = state.outcome.exception() if state.outcome is not None else None
        most = failed.most if isinstance(failed, AttemptFailed) else math.inf
        left = min(self._until, self._since + most) - anyio.current_time()
        over = state.upcoming_sleep > left
        if not over and self._is_new and state.outcome is not None:
            _log.warning("%s; trying again for %.0f s", failed, left)
        return over


def _asked_pause(state: RetryCallState) -> float:
    """Return the seconds that the server wants clients to wait."""
    failed = state.outcome.exception() if state.outcome is not None else None
    return failed.pause if isinstance(failed, AttemptFailed) else 0.0
