"""Ask again over a restart: for requests that may be handled twice (DESIGN 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import tenacity

from oubliette.kit import ActorDead

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RESTART_SECONDS: Final = 5.0  # for a failed actor to be there again

T = TypeVar("T")


async def ask_again(ask: Callable[[], Awaitable[T]]) -> T:
    """Await `ask()`; when who was asked ended before it answered, ask its successor.

    Raises:
        ActorDead: nobody was there for `RESTART_SECONDS`.
    """
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(ActorDead),
        stop=tenacity.stop_after_delay(RESTART_SECONDS),
        wait=tenacity.wait_exponential_jitter(initial=0.02, max=0.5, jitter=0.02),
        reraise=True,
    ):
        with attempt:
            return await ask()
    raise AssertionError  # AsyncRetrying returns or raises
