"""Hijacked connection of an engine: one request, after which it carries a program's streams.

Written here because the SDK's own reads past the head of the answer, may lose what came with it,
and blocks. Input is cut into frames of 8 bytes and a payload, by standard stream; payloads are
passed on as they arrive, whole or not.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from oubliette.runtime.containers.bridge_transport import STDERR, STDOUT
from oubliette.runtime.containers.engine_errors import EngineNotFound, EngineRefused

if TYPE_CHECKING:
    from oubliette.runtime.containers.docker.client import Engine


_FRAME: Final = struct.Struct(">B3xI")
_KINDS: Final = frozenset({0, STDOUT, STDERR})
_MAX_HEAD: Final = 1 << 16
_MAX_BODY: Final = 1 << 16  # of a refusal


class ExecOutput(Protocol):
    """Receiver of the program's output; called from the loop."""

    def output(self, kind: int, data: bytes) -> None:
        """Process bytes of one of its streams."""
        ...

    def ended(self, error: Exception | None) -> None:
        """Note that the connection is closed; called once, only after the engine had accepted."""
        ...

    def pause_writing(self) -> None:
        """Pause writing: the buffer is full."""
        ...

    def resume_writing(self) -> None: ...


async def open_stream(
    engine: Engine, path: str, body: object, sink: ExecOutput
) -> asyncio.Transport:
    """POST `body` to `path`; what the engine then streams goes to `sink`.

    Raises:
        EngineMissing: the engine does not answer.
        EngineNotFound, EngineRefused: the engine refused.
    """
    version = await engine.version()
    content = b"" if body is None else json.dumps(body).encode()
    request = (
        f"POST /{version}{path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    ).encode()
    protocol = _Hijack(sink)
    transport = await engine.open(lambda: protocol)
    try:
        transport.write(request + content)
        await protocol.agreed
    except BaseException:
        transport.abort()
        raise
    return transport


class _Hijack(asyncio.Protocol):
    """Protocol of the connection: first an HTTP answer, then frames."""

    def __init__(self, sink: ExecOutput) -> None:
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sink = sink
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._streaming = False
        self._kind = 0
        self._left = 0
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        if self._streaming:
            self._frames(data)
            return
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end >= 0:
            self._answered(self._buffer[:end], self._buffer[end + 4 :])
        elif len(self._buffer) > _MAX_HEAD:
            self._fail(EngineRefused("the engine's answer has no end"))

    def _answered(self, head: bytes, rest: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(None, 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if status == 101 or (status == 200 and "transfer-encoding" not in fields):
            self._streaming = True
            self._buffer = b""
            if not self.agreed.done():
                self.agreed.set_result(None)
            self._frames(rest)
            return
        length = fields.get("content-length", "")
        if length.isdigit() and len(rest) < min(int(length), _MAX_BODY):
            return  # the reason is still being received
        said = _message(rest) or lines[0]
        self._fail(
            EngineNotFound(said) if status == 404 else EngineRefused(said, status=status or 500)
        )

    def _fail(self, error: Exception) -> None:
        self._error = error
        if not self.agreed.done():
            self.agreed.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _frames(self, data: bytes) -> None:
        view = memoryview(self._buffer + data if self._buffer else data)
        while view:
            if self._left:
                part = view[: self._left]
                self._left -= len(part)
                view = view[len(part) :]
                self._sink.output(self._kind, bytes(part))
                continue
            if len(view) < _FRAME.size:
                break
            self._kind, self._left = _FRAME.unpack_from(view)
            if self._kind not in _KINDS:
                self._fail(
                    EngineRefused(f"the engine's stream has no frames: {bytes(view[:100])!r}")
                )
                return
            view = view[_FRAME.size :]
        self._buffer = bytes(view)

    def connection_lost(self, exc: Exception | None) -> None:
        error = self._error or exc
        if not self.agreed.done():
            self.agreed.set_exception(error or EngineRefused("the engine closed the connection"))
        elif self._streaming:
            self._sink.ended(error)

    def pause_writing(self) -> None:
        self._sink.pause_writing()

    def resume_writing(self) -> None:
        self._sink.resume_writing()


def _message(body: bytes) -> str:
    try:
        decoded: Any = json.loads(body)
        return str(decoded["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:500]
