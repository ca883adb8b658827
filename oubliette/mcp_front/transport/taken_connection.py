"""TakenConnection: a connection of a browser that carries no HTTP from now on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from uvicorn.protocols.http.flow_control import FlowControl

MAX_UNREAD: Final = 64 * 1024  # bytes, halved


class TakenConnection:
    """Raw bytes of a connection, in both directions with backpressure."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, first: bytes) -> None:
        self._transport = transport
        self._flow = flow
        self._reader = asyncio.StreamReader(limit=MAX_UNREAD)
        self._reader.set_transport(transport)
        self.received(first)
        flow.resume_reading()

    def received(self, data: bytes) -> None:
        if data:
            self._reader.feed_data(data)

    def lost(self) -> None:
        self._reader.feed_eof()

    async def read(self, most: int) -> bytes:
        """Return the next bytes; empty at the end."""
        return await self._reader.read(most)

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the browser reads too slowly.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self._transport.is_closing():
            raise ConnectionResetError("the browser has closed")
        if data:
            self._transport.write(data)
            await self._flow.drain()

    def close(self) -> None:
        """Close once all output is sent."""
        self._transport.close()
