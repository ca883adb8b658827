"""Async context managers for blocking tests, on an event loop in a thread of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractAsyncContextManager

T = TypeVar("T")


@contextmanager
def on_loop_thread(manager: AbstractAsyncContextManager[T]) -> Generator[T]:
    """Enter and leave `manager` on the loop of a new thread; works where a loop runs, too."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(manager) as entered,
    ):
        yield entered
