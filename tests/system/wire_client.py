"""The container's end of a session's link: as raw lines, or `oubliette-client` as a process.

Both take the place of the client that the session's agent would start on its first call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oubliette.incontainer import wire
from oubliette.records import Container, Session
from oubliette.runtime.store.codec import decode
from oubliette.runtime.zipapp import zipapp_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.system.site import Site

LIMIT = 32 * 1024 * 1024
WAIT = 10.0  # seconds for a line


def place(site: Site, session_id: str) -> tuple[Session, Path]:
    """The record of a live session, and the relay socket of its container."""
    ((data,),) = site.server.query("SELECT data FROM sessions WHERE id = ?", session_id)
    session = decode(Session, data)
    ((data,),) = site.server.query("SELECT data FROM containers WHERE id = ?", session.container_id)
    return session, Path(decode(Container, data).folder) / "relay.sock"


class WireClient:
    """Lines of JSON to and from the other side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, site: Site, session_id: str) -> AsyncGenerator[WireClient]:
        """The session's link itself, as the agent's client has it."""
        session, socket = place(site, session_id)
        reader, writer = await asyncio.open_unix_connection(socket, limit=LIMIT)
        try:
            writer.write(
                wire.Downstream(session.project_id, session.id, session.pairing_secret).line()
            )
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    @classmethod
    @contextlib.asynccontextmanager
    async def mcp_server(cls, site: Site, session_id: str) -> AsyncGenerator[WireClient]:
        """`oubliette-client` over stdio, initialised as an agent would."""
        session, socket = place(site, session_id)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(zipapp_path()), "client", str(socket),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LIMIT,
            env={
                "PATH": os.environ["PATH"],
                "OUBLIETTE_PROJECT_ID": session.project_id,
                "OUBLIETTE_SESSION_ID": session.id,
                "OUBLIETTE_PAIRING_SECRET": session.pairing_secret or "",
            },
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        client = cls(process.stdout, process.stdin)
        try:
            hello = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            }
            await client.ask("initialize", hello)
            await client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            yield client
        finally:
            process.stdin.close()
            async with asyncio.timeout(WAIT):
                await process.wait()

    async def send(self, message: object) -> None:
        """Write one line."""
        self._writer.write(json.dumps(message).encode() + b"\n")
        await self._writer.drain()

    async def send_raw(self, line: bytes) -> None:
        """Write these bytes and a line end."""
        self._writer.write(line + b"\n")
        await self._writer.drain()

    async def receive(self, timeout: float = WAIT) -> Any:
        """The next line; None at the end."""
        async with asyncio.timeout(timeout):
            line = await self._reader.readline()
        return json.loads(line) if line else None

    async def until(self, timeout: float = WAIT, **fields: Any) -> dict[str, Any]:
        """The next message with these fields; what comes before it is dropped."""
        async with asyncio.timeout(timeout):
            while True:
                message = await self.receive(timeout)
                assert message is not None, "the link ended"
                if all(message.get(name) == value for name, value in fields.items()):
                    return message

    async def config(self) -> dict[str, Any]:
        """The next `caller_tools_config`."""
        return await self.until(method="caller_tools_config")

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request; its whole answer."""
        number = next(self._ids)
        await self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return await self.until(id=number)

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """A request; its result."""
        return (await self.call(method, params))["result"]

    async def list_tools(self) -> list[dict[str, Any]]:
        """`tools/list`."""
        return (await self.ask("tools/list", {}))["tools"]
