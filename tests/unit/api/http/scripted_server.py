"""An HTTP server that answers each request as a test says, and notes what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

RESULT: dict[str, Any] = {"ok": True}


def rpc(result: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


def returned(structured: dict[str, Any] = RESULT) -> bytes:
    """A tool's result, as the JSON-RPC message."""
    return rpc({"structuredContent": structured, "isError": False})


def failed(**error: Any) -> bytes:
    """A tool's error, as the JSON-RPC message."""
    return rpc({"isError": True, "content": [], "_meta": {"dev.oubliette/error": error}})


def http(
    body: bytes = b"", *, status: int = 200, kind: str = "application/json", **headers: str
) -> bytes:
    """A whole response."""
    lines = {"content-type": kind, "content-length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body


def stream(*messages: bytes) -> bytes:
    """A response of server-sent events, ended by the end of the connection."""
    head = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return head + b"".join(b"event: message\r\ndata: %b\r\n\r\n" % each for each in messages)


class Request:
    """A request that waits for its answer."""

    def __init__(self, head: bytes, body: bytes, reader: Any, writer: Any) -> None:
        line, *headers = head.decode().split("\r\n")
        self.path = line.split()[1]
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (each.partition(":") for each in headers)
        }
        self.body: Any = json.loads(body) if body else None
        self._reader = reader
        self._writer = writer

    @property
    def arguments(self) -> Any:
        return self.body["params"]["arguments"]

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def client_leaves(self) -> None:
        """Wait until the client has closed the connection."""
        while await self._reader.read(4096):
            pass


Answer = Callable[[Request], Awaitable[None]] | bytes | None
"""What is written, or done; None: the connection is closed instead of an answer."""


class ScriptedServer:
    """Answers requests with `answers`, in their order; then with a plain result."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        request = Request(head.strip(), await reader.readexactly(size), reader, writer)
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else http(returned())
        if answer is None:
            return False
        if isinstance(answer, bytes):
            await request.write(answer)
            return b"connection: close" not in answer
        await answer(request)
        return True
