"""Waiting for whichever comes first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence


async def first_of(waits: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Return when one of `waits` has ended, however it did; the others are cancelled.

    Each must have a deadline of its own.
    """
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
