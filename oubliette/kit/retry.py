"""Asks that are repeated across an actor's restart, for requests that may be handled twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import tenacity

from oubliette.kit.errors import ActorDead

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
