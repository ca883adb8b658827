"""A client's side of a WebSocket, as much as tests need of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oubliette.incontainer import wire

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
SECONDS = 30.0


class Refused(AssertionError):
    """The server consents to no WebSocket."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body!r}")
        self.status = status


class CommandSocket:
    """A WebSocket at `/exec`: frames of a command, collected."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.out = b""
        self.err = b""
        self.ended: dict[str, Any] | None = None
        self._decoder = wire.FrameDecoder()

    def message(self, kind: int, data: bytes, *, final: bool = True) -> None:
        """Send a frame, masked as the standard wants it."""
        mask = os.urandom(4)
        size = len(data)
        if size < 126:
            length = bytes([0x80 | size])
        elif size < 1 << 16:
            length = bytes([0x80 | 126]) + size.to_bytes(2, "big")
        else:
            length = bytes([0x80 | 127]) + size.to_bytes(8, "big")
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self.writer.write(bytes([(0x80 if final else 0) | kind]) + length + mask + masked)

    def send(self, kind: int, n: int = 0, payload: bytes = b"") -> None:
        """Send a frame of `wire`."""
        self.message(BINARY, wire.encode_frame(kind, n, payload))

    async def receive(self) -> tuple[int, bytes]:
        """The kind and the content of the next message."""
        async with asyncio.timeout(SECONDS):
            first, size = await self.reader.readexactly(2)
            assert first & 0x80
            assert size < 128, "a server masks nothing"
            if size >= 126:
                more = await self.reader.readexactly(2 if size == 126 else 8)
                size = int.from_bytes(more, "big")
            return first & 0x0F, await self.reader.readexactly(size)

    async def ask(self, **wanted: Any) -> dict[str, Any]:
        """Ask for a command; the answer."""
        self.message(TEXT, json.dumps(wanted).encode())
        kind, data = await self.receive()
        assert kind == TEXT
        return json.loads(data)

    async def sees(self, text: bytes) -> None:
        while text not in self.out:
            await self._frames()

    async def end(self) -> dict[str, Any]:
        """How the command has ended."""
        while self.ended is None:
            await self._frames()
        return self.ended

    async def _frames(self) -> None:
        kind, data = await self.receive()
        assert kind == BINARY, (kind, data)
        for frame in self._decoder.feed(data):
            if frame.kind == wire.EXIT:
                self.ended = json.loads(frame.payload)
            elif frame.kind == wire.STDERR:
                self.err += frame.payload
            else:
                self.out += frame.payload


@contextlib.asynccontextmanager
async def command_socket(url: str, key: str, **headers: str) -> AsyncIterator[CommandSocket]:
    """Connect to `/exec` of the server whose MCP is at `url`.

    Raises:
        Refused: it consents to no WebSocket.
    """
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    sent = {
        "Host": place.netloc,
        "Authorization": f"Bearer {key}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **headers,
    }
    lines = ["GET /exec HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items() if value)]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    try:
        async with asyncio.timeout(SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            if status != 101:
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                raise Refused(status, await reader.readexactly(length))
        yield CommandSocket(reader, writer)
    finally:
        writer.close()
