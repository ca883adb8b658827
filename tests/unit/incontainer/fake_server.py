"""Stand-ins on both sides of `oubliette-client`: a server behind a relay, and an agent over lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
CLIENT = [sys.executable, "-m", "oubliette.incontainer", "client"]
SCRIPTED = [sys.executable, "-m", "oubliette.incontainer", "scripted-agent"]
LIMIT = 80 << 20  # bytes of a line that a test may read
SECONDS = 15.0  # any single wait; only a failing test takes it

ADD = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def config_params(*tools: Json, caller_id: str = "ant", **more: Any) -> Json:
    return {"caller_id": caller_id, "tools": list(tools), **more}


def config_line(params: Json) -> Json:
    name = "caller_tools_config"
    return {"jsonrpc": "2.0", "method": name, "type": name, "params": params}


class ServerLink:
    """One accepted link, from its header on."""

    def __init__(
        self, header: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.header = header
        self.reader = reader
        self.writer = writer

    def send(self, *messages: Json | bytes) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.writer.write(data + b"\n")

    def config(self, *tools: Json, **more: Any) -> None:
        self.send(config_line(config_params(*tools, **more)))

    async def receive(self) -> Json:
        async with asyncio.timeout(SECONDS):
            line = await self.reader.readline()
        assert line, "the client closed its link"
        return json.loads(line)

    async def request(self, method: str | None = None) -> Json:
        """The next request; of that method, if one is named."""
        while True:
            message = await self.receive()
            if method in (None, message["method"]):
                return message

    def answer(self, request: Json, result: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def fail(self, request: Json, code: int, message: str, kind: str | None = None) -> None:
        error: Json = {"code": code, "message": message}
        if kind is not None:
            error["data"] = {"kind": kind}
        self.send({"jsonrpc": "2.0", "id": request["id"], "error": error})

    def provides_no(self, request: Json) -> None:
        """Answer that no caller provides the tool of this call."""
        tool = request["params"]["tool"]
        message = f"no caller provides a tool {tool!r} to this session"
        self.fail(request, -32000, message, "not_found")

    async def ended(self) -> bytes:
        """What came until the client closed the link."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()

    def cut(self) -> None:
        self.writer.transport.abort()


class FakeServer:
    """Listens where the relay would; each link gets `greeting` at once, unless that is None."""

    def __init__(self, *tools: Json, greet: bool = True, **more: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="ob", dir="/tmp")
        self.path = f"{self.folder}/relay.sock"
        self.greeting: list[Json | bytes] = (
            [config_line(config_params(*tools, **more))] if greet else []
        )
        self.links: asyncio.Queue[ServerLink] = asyncio.Queue()
        self._open: list[ServerLink] = []
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.path, limit=LIMIT)

    async def deafen(self) -> None:
        """Accept no more links and remove the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readline()
        link = ServerLink(header.decode().rstrip("\n"), reader, writer)
        self._open.append(link)
        link.send(*self.greeting)
        self.links.put_nowait(link)

    async def link(self) -> ServerLink:
        """The next link that a client opens."""
        async with asyncio.timeout(SECONDS):
            return await self.links.get()

    async def __aenter__(self) -> FakeServer:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.deafen()
        for link in self._open:
            link.writer.close()
            with contextlib.suppress(OSError):
                await link.writer.wait_closed()
        shutil.rmtree(self.folder)


def environment(path: str, **more: str | None) -> dict[str, str]:
    """A client's environment; a value of None takes the variable out."""
    given: dict[str, str | None] = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "OUBLIETTE_PROJECT_ID": "proj_1",
        "OUBLIETTE_SESSION_ID": "gogol_1",
        "OUBLIETTE_PAIRING_SECRET": "s3cret",
        "OUBLIETTE_RELAY_SOCKET": path,
        **more,
    }
    return {name: value for name, value in given.items() if value is not None}


class LineProcess:
    """A program that speaks JSON lines on its stdio."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str | Path = ROOT) -> None:
        self._argv = argv
        self._env = env
        self._cwd = cwd
        self._ended = False

    async def __aenter__(self) -> Any:
        self.process = await asyncio.create_subprocess_exec(
            *self._argv,
            env=self._env,
            cwd=self._cwd,
            limit=LIMIT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin
        self.stdout = self.process.stdout
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                self.stdin.close()
            try:
                async with asyncio.timeout(SECONDS):
                    await self.process.communicate()
            except TimeoutError:
                self.process.kill()
                await self.process.communicate()
                raise AssertionError("the process did not end with its stdin") from None
        self.process._transport.close()  # type: ignore[attr-defined]

    def send(self, *messages: Any) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.stdin.write(data + b"\n")

    async def receive(self) -> Any:
        async with asyncio.timeout(SECONDS):
            line = await self.stdout.readline()
        assert line, "the process closed its stdout"
        return json.loads(line)

    async def end(self) -> tuple[int, str]:
        """Close its stdin; exit code and stderr."""
        self.stdin.close()
        return await self.exited()

    async def exited(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        async with asyncio.timeout(SECONDS):
            stderr = await self.process.stderr.read()
            code = await self.process.wait()
        return code, stderr.decode()


class RawAgent(LineProcess):
    """An agent that speaks MCP to the client line by line."""

    def __init__(self, path: str, **more: str | None) -> None:
        super().__init__(CLIENT, environment(path, **more))
        self.notes: list[Json] = []
        self._last_id = 0

    def note(self, method: str, /, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def start(self, method: str, /, **params: Any) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        return self._last_id

    async def reply(self, request_id: Any) -> Json:
        """The answer to that request; notifications before it are kept in `notes`."""
        while True:
            message = await self.receive()
            if "method" in message:
                self.notes.append(message)
            else:
                assert message["id"] == request_id, message
                return message

    async def note_of(self, method: str) -> Json:
        """The next notification of that method."""
        while True:
            for note in self.notes:
                if note["method"] == method:
                    self.notes.remove(note)
                    return note
            message = await self.receive()
            assert "method" in message, message
            self.notes.append(message)

    async def ask(self, method: str, /, **params: Any) -> Json:
        return await self.reply(self.start(method, **params))

    async def ask_modern(self, method: str, /, **params: Any) -> Json:
        return await self.ask(method, _meta=META, **params)

    async def handshake(self, version: str = "2025-11-25") -> Json:
        info = {"name": "test", "version": "1"}
        hello = await self.ask(
            "initialize", protocolVersion=version, capabilities={}, clientInfo=info
        )
        self.note("notifications/initialized")
        return hello["result"]

    async def tool_names(self) -> list[str]:
        listed = await self.ask("tools/list")
        return [tool["name"] for tool in listed["result"]["tools"]]

    def call(self, tool: str, /, **arguments: Any) -> int:
        return self.start("tools/call", name=tool, arguments=arguments)
