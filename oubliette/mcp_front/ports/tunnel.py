"""The bytes of a WebSocket between a browser and a program in a container; they are not parsed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.actors.ports.messages import GuestStream
    from oubliette.mcp_front.transport.taken_connection import TakenConnection

PIECE: Final = 64 * 1024  # bytes


async def carry(browser: TakenConnection, stream: GuestStream, first: bytes) -> None:
    """Carry bytes both ways until either side ends; what it sent before is still delivered."""

    async def upload() -> None:
        while data := await browser.read(PIECE):
            stream.writer.write(data)
            await stream.writer.drain()

    async def download() -> None:
        await browser.write(first)
        while data := await stream.reader.read(PIECE):
            await browser.write(data)

    both = {asyncio.create_task(upload()), asyncio.create_task(download())}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        browser.close()
