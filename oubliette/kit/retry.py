"""Another attempt: the delays before it, and asks repeated across an actor's restart.

The delays come from a tenacity wait object; a timer does the waiting. Repeated asks are for
requests that may be handled twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import tenacity

from oubliette.kit.errors import ActorDead

if TYPE_CHECKING:
    from collections.abc import Awaitable


Backoff = Callable[[tenacity.RetryCallState], float]
"""A tenacity wait object, such as `tenacity.wait_exponential(multiplier=0.05, max=2.0)`."""

BACKOFF: Final[Backoff] = tenacity.wait_exponential_jitter(multiplier=0.02, max=5.0, jitter=0.02)
"""Delays before the restarts of an actor that fails again and again."""


def backoff_delay(wait: Backoff, failures: int) -> float:
    """Return the seconds to wait before the next attempt, after `failures` in a row (from 1)."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = failures
    return wait(state)


class Failures:
    """Failures in a row of one thing that is tried again and again.

    Args:
        wait: the delays between two attempts.
    """

    def __init__(self, wait: Backoff) -> None:
        self._wait = wait
        self._count = 0

    def next_delay(self) -> float:
        """Count a failure, and return the seconds to wait before the next attempt."""
        self._count += 1
        return backoff_delay(self._wait, self._count)

    def reset(self) -> None:
        """Forget the failures: an attempt succeeded."""
        self._count = 0


RESTART_SECONDS: Final = 5.0  # for a failed actor to be restarted

T = TypeVar("T")


async def ask_with_retry(
    ask: Callable[[], Awaitable[T]],
    on: type[BaseException] | tuple[type[BaseException], ...] = ActorDead,
    *,
    seconds: float = RESTART_SECONDS,
) -> T:
    """Await `ask()`, and repeat it if the actor ended before it answered.

    Args:
        ask: Makes the request; called again for each attempt.
        on: Errors after which it is repeated.
        seconds: Time after which no further attempt is made.

    Raises:
        ActorDead: no actor was there for so long; as for the other errors of `on`.
    """
    try:
        return await ask()
    except on:
        return await _insist(ask, on, seconds)


async def _insist(
    ask: Callable[[], Awaitable[T]],
    on: type[BaseException] | tuple[type[BaseException], ...],
    seconds: float,
) -> T:
    """Repeat `ask` for some time. Used only if needed: tenacity's objects are left to the
    collector.
    """
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(on),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_exponential(multiplier=0.02, max=0.5) + tenacity.wait_random(0, 0.02),
        reraise=True,
    ):
        with attempt:
            return await ask()
    raise AssertionError  # AsyncRetrying returns or raises
