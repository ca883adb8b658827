"""The progress of a clone on its way to the client that asked for it."""

from __future__ import annotations

import asyncio

import pytest

from oubliette.actors.messages import CloneProgressed
from oubliette.kit import System
from oubliette.tools.clone_progress import CloneProgressReceiver

pytestmark = pytest.mark.anyio


async def test_each_line_of_progress_is_passed_on_in_order() -> None:
    lines: list[str] = []
    last = asyncio.Event()

    def passed_on(text: str) -> None:
        lines.append(text)
        if text == "100 %":
            last.set()

    async with System("test", roundtrip_messages=True, watchdog=None) as system:
        receiver = system.spawn(CloneProgressReceiver, passed_on, name="clone-progress/1")
        for text in ("counting", "50 %", "100 %"):
            receiver.tell(CloneProgressed(text=text))
        async with asyncio.timeout(10):
            await last.wait()
    assert lines == ["counting", "50 %", "100 %"]
