"""Minimal HTTP/1.1 client on bare sockets: JSON answers and server-sent events.

It adds next to nothing to a measurement, can be frozen and killed, and shows that a caller needs no
SDK.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

LIMIT = 16 * 1024 * 1024


class HttpError(Exception):
    """The server refused; `status` and `body` are its answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:200].decode('utf-8', 'replace')}")
        self.status = status
        self.headers = headers
        self.body = body


class Response:
    """Head of an answer, and its body as it arrives."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces of the body."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._reader.readline()).split(b";")[0], 16):
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            await self._reader.readline()
        elif length := int(self.headers.get("content-length", "0")):
            yield await self._reader.readexactly(length)

    async def body(self) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def messages(self) -> AsyncIterator[Any]:
        """Iterate over the JSON documents of the body: one, or those of its server-sent events."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            whole = await self.body()
            if whole:
                yield json.loads(whole)
            return
        pending = b""
        async for chunk in self.chunks():
            pending = (pending + chunk).replace(b"\r\n", b"\n")
            *events, pending = pending.split(b"\n\n")
            for event in events:
                data = [line[5:].strip() for line in event.split(b"\n") if line[:5] == b"data:"]
                if data:
                    yield json.loads(b"\n".join(data))


class HttpClient:
    """Client that keeps idle connections; each request has one for itself."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host = parts.hostname
        self.port = parts.port or 80
        self.path = parts.path or "/"
        self.headers = dict(headers or {})
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._writers: set[asyncio.StreamWriter] = set()

    async def aclose(self) -> None:
        """Close all connections, open streams too."""
        for writer in list(self._writers):
            writer.close()
        await asyncio.gather(
            *(writer.wait_closed() for writer in self._writers), return_exceptions=True
        )
        self._writers.clear()
        self._idle.clear()

    def kill(self) -> None:
        """Reset all connections, as the death of the process would."""
        for writer in self._writers:
            writer.transport.abort()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        *,
        path: str | None = None,
        json_body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Response]:
        """Send a request; its connection is kept if the body was read to the end."""
        body = b"" if json_body is None else json.dumps(json_body).encode()
        head = {
            "host": f"{self.host}:{self.port}",
            "accept": "application/json, text/event-stream",
            **({"content-type": "application/json"} if json_body is not None else {}),
            "content-length": str(len(body)),
            **self.headers,
            **(headers or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        message = f"{method} {path or self.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
        reader, writer = await self._send(message)
        keep = False
        try:
            response = await _head(reader)
            yield response
            keep = response.headers.get("connection", "").lower() != "close"
        finally:
            if keep:
                self._idle.append((reader, writer))
            else:
                writer.close()
                self._writers.discard(writer)

    async def _send(self, message: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if writer.is_closing() or reader.at_eof():
                writer.close()
                self._writers.discard(writer)
                continue
            writer.write(message)
            return reader, writer
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=LIMIT)
        self._writers.add(writer)
        writer.write(message)
        return reader, writer


async def _head(reader: asyncio.StreamReader) -> Response:
    status = await reader.readline()
    if not status:
        raise ConnectionResetError("the server closed the connection")
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return Response(reader, int(status.split()[1]), headers)
