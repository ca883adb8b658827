"""The server's side of a WebSocket (RFC 6455), as a stream of bytes and a few documents.

Messages have no meaning of their own: the bytes of a client's are one stream, text or not.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import TYPE_CHECKING, Final

from oubliette.mcp_front.auth import header

if TYPE_CHECKING:
    from starlette.types import Scope

    from oubliette.mcp_front.transport.taken_connection import TakenConnection

CLOSE_SECONDS: Final = 1.0
LARGEST: Final = 256 * 1024  # bytes of a frame
REFUSAL: Final = [(b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
"""Headers of the answer to a request for no WebSocket, with status 426."""
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT: Final = 1
_BINARY: Final = 2
_DATA: Final = frozenset({0, _TEXT, _BINARY})
_CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10
_SHORT: Final = 125  # bytes of a frame that needs no further length, and of a control frame
_PIECE: Final = 64 * 1024


class WebSocketFailed(ConnectionError):
    """The client does not follow the protocol; the connection is of no use any more."""


def accepted(scope: Scope, upgrade: bytes | None) -> bytes | None:
    """Return the head of the consent to a WebSocket; None: the request asks for none."""
    key = header(scope["headers"], b"sec-websocket-key")
    version = header(scope["headers"], b"sec-websocket-version")
    is_websocket = scope["method"] == "GET" and (upgrade or b"").lower() == b"websocket"
    if key is None or version != b"13" or not is_websocket:
        return None
    proof = base64.b64encode(hashlib.sha1(key.strip() + _GUID, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-accept: " + proof + b"\r\n\r\n"
    )


class WebSocket:
    """A WebSocket on a connection whose client has the consent."""

    def __init__(self, connection: TakenConnection) -> None:
        self._connection = connection
        self._received = b""

    async def read(self) -> tuple[bytes, bool]:
        """Return the bytes of the next frame, and whether its message ends; empty and True: closed.

        Raises:
            WebSocketFailed: the client sent something else than frames.
        """
        while True:
            head = await self._exactly(2)
            if head is None:
                return b"", True
            final, kind = bool(head[0] & 0x80), head[0] & 0x0F
            data = await self._payload(head)
            if data is None or kind == _CLOSE:
                return b"", True
            if kind in _DATA:
                if data:
                    return data, final
            elif len(data) > _SHORT or not final or kind not in {_PING, _PONG}:
                raise WebSocketFailed("a control frame that is long, cut or unknown")
            elif kind == _PING:
                await self._send(_PONG, data)

    async def _payload(self, head: bytes) -> bytes | None:
        if head[0] & 0x70 or not head[1] & 0x80:
            raise WebSocketFailed("an extension, or a frame without a mask")
        size = head[1] & 0x7F
        if size > _SHORT:
            more = await self._exactly(2 if size == _SHORT + 1 else 8)
            if more is None:
                return None
            size = int.from_bytes(more)
        if size > LARGEST:
            raise WebSocketFailed(f"a frame of more than {LARGEST} bytes")
        masked = await self._exactly(4 + size)
        return None if masked is None else _unmasked(masked[:4], masked[4:])

    async def _exactly(self, size: int) -> bytes | None:
        parts, have = [self._received], len(self._received)
        while have < size:
            data = await self._connection.read(_PIECE)
            if not data:
                return None
            parts.append(data)
            have += len(data)
        whole = b"".join(parts)
        self._received = whole[size:]
        return whole[:size]

    async def write(self, data: bytes, *, text: bool = False) -> None:
        """Send a message, and wait while the client reads too slowly.

        Raises:
            ConnectionError: the connection has ended.
        """
        await self._send(_TEXT if text else _BINARY, data)

    async def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size <= _SHORT:
            head = bytes((0x80 | kind, size))
        elif size < 1 << 16:
            head = bytes((0x80 | kind, _SHORT + 1)) + size.to_bytes(2)
        else:
            head = bytes((0x80 | kind, _SHORT + 2)) + size.to_bytes(8)
        await self._connection.write(head + data)

    async def close(self) -> None:
        """Close once all output is sent."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send(_CLOSE, (1000).to_bytes(2))
        except (ConnectionError, TimeoutError):
            return  # the client was first, or takes nothing
        finally:
            self._connection.close()


def _unmasked(mask: bytes, data: bytes) -> bytes:
    size = len(data)
    whole = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data) ^ int.from_bytes(whole)).to_bytes(size)
