"""An engine of the tests' own: the Docker API as far as a test answers it, on a Unix socket or TCP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Awaitable, Callable
    from pathlib import Path

VERSION = {"Version": "99.1", "ApiVersion": "1.41", "MinAPIVersion": "1.24"}
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


def frame(kind: int, data: bytes) -> bytes:
    """A frame of an engine's stream."""
    return struct.pack(">B3xI", kind, len(data)) + data


class FakeEngine:
    """Answers with `answers[path]` (without the version): a body, or a function of the streams."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> str:
        """Listen on a Unix socket; its address."""
        self._server = await asyncio.start_unix_server(self._client, path)
        return f"unix://{path}"

    async def _client(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._request(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _request(self, reader: StreamReader, writer: StreamWriter) -> bool:
        first = await reader.readline()
        if not first:
            return False
        fields: dict[str, str] = {}
        while (line := (await reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        await reader.readexactly(int(fields.get("content-length", 0)))
        target = first.split()[1].decode()
        path = target.partition("?")[0]
        if path.startswith("/v1."):
            path = path[path.index("/", 1) :]
        self.asked.append(path)
        answer = {"/version": VERSION, "/info": self.info, **self.answers}.get(path)
        if callable(answer):
            found = await answer(reader, writer)
            if found is None:
                return False
            answer = found
        status = "404 Not Found" if answer is None else "200 OK"
        body = json.dumps(answer if answer is not None else {"message": f"no {path}"}).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return True

    async def aclose(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def runs(program: Callable[[bytes], Awaitable[list[str]]] | list[str]) -> Any:
    """An exec that really runs a program, its streams as an engine carries them."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        argv = program if isinstance(program, list) else await program(b"")
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        writer.write(UPGRADED)

        async def feed(into: StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    into.write(data)
                    await into.drain()
            into.close()

        async def carry(kind: int, source: StreamReader) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    writer.write(frame(kind, data))
                    await writer.drain()

        feeding = asyncio.create_task(feed(child.stdin))
        try:
            await asyncio.gather(carry(1, child.stdout), carry(2, child.stderr))
            await child.wait()
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            if child.returncode is None:
                child.kill()
                await child.wait()

    return serve
