"""MCP client of an agent in Python: `oubliette-client` over stdio, for a function on asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import signal

from .. import wire
from ..io.json_values import as_array, as_object, as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Json = dict[str, Any]

PROTOCOL = "2025-11-25"
START_SECONDS = 30.0  # for the handshake
END_SECONDS = 2.0  # between the end of its stdin and SIGKILL
CLIENT_INFO = {"name": "oubliette-python-agent", "version": "0.1.0"}


class ToolRefused(Exception):
    """A tool answered with an error, or there was no answer; the message is the tool's."""


class _ClientProcess:
    """One process of `oubliette-client`, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._last_id = 0
        self.ended = False
        self._reader = asyncio.ensure_future(self._read())

    async def open(self) -> None:
        hello: Json = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": CLIENT_INFO,
        }
        try:
            await asyncio.wait_for(self.ask("initialize", hello), START_SECONDS)
        except asyncio.TimeoutError:
            raise ToolRefused(f"oubliette-client: no answer in {START_SECONDS:g} s") from None
        self._send({"method": "notifications/initialized"})

    async def ask(self, method: str, params: Json) -> Json:
        """Send a request and wait for its result; a cancelled one is cancelled there too."""
        number = self._request(method, params)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            message = await answer
        except asyncio.CancelledError:
            reason: Json = {"requestId": number, "reason": "interrupted"}
            self._send({"method": "notifications/cancelled", "params": reason})
            raise
        finally:
            self._answers.pop(number, None)
        error = as_object(message.get("error"))
        if error is not None:
            raise ToolRefused(as_text(error.get("message"), "failed without a reason"))
        return as_object(message.get("result")) or {}

    async def close(self) -> None:
        """End it as the protocol requires: close its stdin, wait, kill."""
        stdin = self._process.stdin
        if stdin is not None:
            stdin.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._reader), END_SECONDS)
        except asyncio.TimeoutError:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # it ended at this moment
            await self._reader

    def _request(self, method: str, params: Json) -> int:
        if self.ended:
            raise ToolRefused("oubliette-client has ended")
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def _send(self, message: Json) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(wire.encode_json({"jsonrpc": "2.0", **message}))

    async def _read(self) -> None:
        stdout = self._process.stdout
        lines = wire.LineReader()
        while stdout is not None and (data := await stdout.read(1 << 16)):
            for line in lines.feed(data):
                if isinstance(line, wire.OversizeLine):
                    self._fail(f"the answer is {line}", line.request_id)
                else:
                    self._line(line)
        await self._process.wait()
        self.ended = True
        self._fail("oubliette-client has ended")

    def _fail(self, reason: str, number: object = None) -> None:
        """Answer a request with an error; all of them, if it is not known which one."""
        for each, answer in self._answers.items():
            if number in (None, each) and not answer.done():
                answer.set_result({"error": {"message": reason}})

    def _line(self, line: bytes) -> None:
        try:
            message = as_object(json.loads(line)) or {}
        except (ValueError, RecursionError):
            return
        method: object = message.get("method")
        number: object = message.get("id")
        if method == "notifications/tools/list_changed":
            self._request("tools/list", {})  # as agents do; the server waits for it
        elif method is not None and number is not None:
            self._send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
        elif isinstance(number, int):
            answer = self._answers.get(number)
            if answer is not None and not answer.done():
                answer.set_result(message)


class ToolClient:
    """Tools of a session, by MCP. The client starts at the first use, and again if it has ended."""

    def __init__(self, argv: list[str], environ: Mapping[str, str]) -> None:
        self._argv = argv
        self._environ = environ
        self._starting = asyncio.Lock()
        self._process: _ClientProcess | None = None

    async def tools(self) -> list[Json]:
        """The tools that the session has now: name, description, inputSchema."""
        process = await self._running()
        listed = as_array((await process.ask("tools/list", {})).get("tools")) or []
        return [entry for each in listed if (entry := as_object(each)) is not None]

    async def call(self, tool: str, arguments: Json) -> tuple[Any, bool]:
        """Return the result of a tool, structured if it is, and whether it is an error.

        Raises:
            ToolRefused: There was no result.

        """
        process = await self._running()
        answer = await process.ask("tools/call", {"name": tool, "arguments": arguments})
        structured: object = answer.get("structuredContent")
        is_error = answer.get("isError") is True
        if structured is not None and not is_error:
            return structured, False
        blocks = [as_object(block) or {} for block in as_array(answer.get("content")) or []]
        return "\n".join(as_text(each.get("text")) for each in blocks if "text" in each), is_error

    async def close(self) -> None:
        if self._process is not None:
            await self._process.close()
            self._process = None

    async def _running(self) -> _ClientProcess:
        async with self._starting:
            if self._process is not None and not self._process.ended:
                return self._process
            await self.close()
            try:
                started = await asyncio.create_subprocess_exec(
                    *self._argv,
                    env=self._environ,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    start_new_session=True,  # an interrupt of the agent is none of the client
                )
            except OSError as error:
                raise ToolRefused(f"cannot start {self._argv[0]}: {error.strerror}") from None
            process = _ClientProcess(started)
            try:
                await process.open()
            except BaseException:
                await process.close()
                raise
            self._process = process
            return process
