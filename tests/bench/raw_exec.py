"""The engine's own way into a container, by hand: `exec` over its socket, hijacked. The floor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from typing import TYPE_CHECKING, Any

from oubliette.runtime.containers.docker import address as docker_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

FRAME = struct.Struct(">BxxxI")
"""Of a stream without a terminal: which one, how many bytes."""


class RawExec:
    """A program's streams as the engine hands them out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._line = b""

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def read(self) -> bytes:
        """The next piece of its standard output."""
        while True:
            stream, size = FRAME.unpack(await self._reader.readexactly(FRAME.size))
            data = await self._reader.readexactly(size)
            if stream == 1:
                return data

    async def line(self) -> bytes:
        while b"\n" not in self._line:
            self._line += await self.read()
        line, _, self._line = self._line.partition(b"\n")
        return line


async def _ask(
    flavour: str, path: str, body: dict[str, Any], *, upgrade: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    address = docker_address.find(flavour)  # type: ignore[arg-type]
    assert address.path is not None, "the benchmark wants an engine on this machine"
    reader, writer = await asyncio.open_unix_connection(address.path)
    text = json.dumps(body).encode()
    more = "Connection: Upgrade\r\nUpgrade: tcp\r\n" if upgrade else "Connection: close\r\n"
    writer.write(
        f"POST /v1.41{path} HTTP/1.1\r\nHost: engine\r\n{more}"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        + text
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if head.split(b" ", 2)[1] not in {b"101", b"200", b"201"}:
        raise RuntimeError(f"{path}: {head!r} {await reader.read(1000)!r}")
    return reader, writer, head


@contextlib.asynccontextmanager
async def raw_exec(
    flavour: str, container: str, command: Sequence[str], **more: Any
) -> AsyncIterator[RawExec]:
    """Run a program in a container; its end of input is the end of the block."""
    streams = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": False}
    body = {**streams, "Cmd": list(command), **more}
    reader, writer, _ = await _ask(flavour, f"/containers/{container}/exec", body)
    answer = await reader.read()
    writer.close()
    made = json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])  # perhaps chunked
    start = {"Detach": False, "Tty": False}
    reader, writer, _ = await _ask(flavour, f"/exec/{made['Id']}/start", start, upgrade=True)
    try:
        yield RawExec(reader, writer)
    finally:
        with contextlib.suppress(OSError):
            writer.write_eof()
            async with asyncio.timeout(10):
                await reader.read()
        writer.close()
