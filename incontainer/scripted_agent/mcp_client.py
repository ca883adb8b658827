"""MCP client of the scripted agent: `oubliette-client` over stdio, as any agent would run it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

from ..io.json_values import as_array, as_object, as_text
from .shell import kill_group, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .interrupt import InterruptSignal

    Json = dict[str, Any]

LEGACY_VERSION = "2025-11-25"
MODERN_VERSION = "2026-07-28"
START_SECONDS = 30.0  # for the handshake
END_SECONDS = 2.0  # between the end of its stdin and SIGKILL

CLIENT_INFO = {"name": "oubliette-scripted-agent", "version": "0.1.0"}
SUBSCRIPTION = "tools"


class McpError(Exception):
    """The server answered with a JSON-RPC error, or not at all."""


class _Server:
    """One process of the MCP server, from its start to its end."""

    def __init__(
        self, argv: list[str], environ: Mapping[str, str], moment: InterruptSignal, listing: Json
    ) -> None:
        self._moment = moment
        self._listing = listing  # params of `tools/list`
        self._send_lock = threading.Lock()
        self._last_id = 0
        # of each request, once answered: the answer, and its time (`time.perf_counter`)
        self.answers: dict[int, tuple[Json, float] | None] = {}
        self.changes = 0  # list_changed notifications so far
        self.ended = False
        inner_in, self._stdin = os.pipe()
        self._stdout, inner_out = os.pipe()
        try:
            self.pid = spawn(argv, environ, inner_in, inner_out, 2)
        except OSError as error:
            os.close(self._stdin)
            os.close(self._stdout)
            raise McpError(f"cannot start {argv[0]}: {error.strerror}") from None
        finally:
            os.close(inner_in)
            os.close(inner_out)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, message: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        with self._send_lock:
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self._stdin, view) :]
            except OSError:
                raise McpError("the MCP server has ended") from None

    def request(self, method: str, params: Json) -> int:
        with self._moment.condition:
            self._last_id += 1
            number = self._last_id
            self.answers[number] = None
        self.send({"id": number, "method": method, "params": params})
        return number

    def _list_again(self) -> None:
        """Fetch the tools, as agents do after a change notification; the answer is not awaited."""
        with self._moment.condition:
            self._last_id += 1
            number = self._last_id
        try:
            self.send({"id": number, "method": "tools/list", "params": self._listing})
        except McpError:
            pass  # it is ending, and its tools with it

    def take(self, number: int) -> Json:
        """The result for request `number`, which has arrived."""
        with self._moment.condition:
            taken = self.answers.pop(number, None)
        if taken is None:
            raise McpError("the MCP server has ended")
        answer = taken[0]
        error = as_object(answer.get("error"))
        if error is not None:
            raise McpError(as_text(error.get("message"), "failed without a reason"))
        return as_object(answer.get("result")) or {}

    def answered(self, number: int) -> bool:
        return self.ended or self.answers.get(number) is not None

    def close(self) -> None:
        """End it as the protocol requires: close its stdin, wait, kill."""
        with self._send_lock:
            os.close(self._stdin)
            self._stdin = -1
        if not self._moment.wait_regardless(lambda: self.ended, END_SECONDS):
            kill_group(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        with open(self._stdout, "rb", buffering=1 << 16) as lines:
            for line in lines:
                try:
                    message = as_object(json.loads(line))
                except (ValueError, RecursionError):
                    message = None
                if message is not None:
                    self._message(message)
        os.waitpid(self.pid, 0)
        with self._moment.condition:
            self.ended = True
            self._moment.condition.notify_all()

    def _message(self, message: Json) -> None:
        method: object = message.get("method")
        number: object = message.get("id")
        if method == "notifications/tools/list_changed":
            self._list_again()
        with self._moment.condition:
            if method == "notifications/tools/list_changed":
                self.changes += 1
            elif method is None and isinstance(number, int) and number in self.answers:
                self.answers[number] = message, time.perf_counter()
            self._moment.condition.notify_all()
        if method is not None and number is not None:
            error = {"code": -32601, "message": "Method not found"}
            self.send({"id": number, "error": error})


class McpClient:
    """Starts the MCP server at the first use, and again after it has ended."""

    def __init__(
        self, argv: list[str], environ: Mapping[str, str], moment: InterruptSignal, version: str
    ) -> None:
        self._argv = argv
        self._environ = environ
        self._moment = moment
        self._modern = version == MODERN_VERSION
        self._version = version
        self._server: _Server | None = None

    def tools(self) -> list[str]:
        listed = self._ask(self._running(), "tools/list", {})
        entries = as_array(listed.get("tools")) or []
        return [as_text((as_object(entry) or {}).get("name")) for entry in entries]

    def await_tool(self, name: str, seconds: float) -> bool:
        """Wait until the tool is listed, checking again whenever the list has changed."""
        until = time.monotonic() + seconds
        while True:
            server = self._running()
            seen = server.changes
            if name in self.tools():
                return True
            left = until - time.monotonic()
            changed = self._moment.wait(
                lambda server=server, seen=seen: server.ended or server.changes != seen,
                max(0.0, left),
            )
            if not changed:
                return False

    def start_call(self, tool: str, arguments: Json) -> Pending:
        params: Json = self._params({"name": tool, "arguments": arguments})
        server = self._running()
        try:
            number = server.request("tools/call", params)
        except McpError:  # it has ended since its last use, and has not received this
            server.ended = True
            server = self._running()  # another one
            number = server.request("tools/call", params)
        return Pending(server, self._moment, number)

    def start(self) -> None:
        """Start the server, if it does not run."""
        self._running()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _running(self) -> _Server:
        server = self._server
        if server is not None and not server.ended:
            return server
        self.close()
        server = _Server(self._argv, self._environ, self._moment, self._params({}))
        try:
            self._open(server)
        except BaseException:
            server.close()
            raise
        self._server = server
        return server

    def _open(self, server: _Server) -> None:
        if self._modern:
            self._ask(server, "server/discover", {}, START_SECONDS)
            wanted = self._params({"notifications": {"toolsListChanged": True}})
            server.send({"id": SUBSCRIPTION, "method": "subscriptions/listen", "params": wanted})
            return
        hello = {"protocolVersion": self._version, "capabilities": {}, "clientInfo": CLIENT_INFO}
        self._ask(server, "initialize", hello, START_SECONDS)
        server.send({"method": "notifications/initialized"})

    def _ask(
        self, server: _Server, method: str, params: Json, seconds: float | None = None
    ) -> Json:
        pending = Pending(server, self._moment, server.request(method, self._params(params)))
        pending.wait(seconds)
        return pending.result()

    def _params(self, params: Json) -> Json:
        if not self._modern:
            return params
        meta: Json = {
            "io.modelcontextprotocol/protocolVersion": self._version,
            "io.modelcontextprotocol/clientInfo": CLIENT_INFO,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        return {**params, "_meta": meta}


class Pending:
    """A request that was sent and not yet answered."""

    def __init__(self, server: _Server, moment: InterruptSignal, number: int) -> None:
        self._server = server
        self._moment = moment
        self._number = number

    def answered(self) -> bool:
        """Whether `result` would return at once."""
        return self._server.answered(self._number)

    def answered_at(self) -> float:
        """Return when the answer came (a `time.perf_counter`); now, if there is none."""
        answer = self._server.answers.get(self._number)
        return time.perf_counter() if answer is None else answer[1]

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the answer.

        Raises:
            McpError: There was none in time.
            Interrupted: The turn was interrupted; the request is cancelled then.

        """
        try:
            there = self._moment.wait(self.answered, seconds)
        except BaseException:
            self.cancel()
            raise
        if not there:
            self.cancel()
            raise McpError(f"no answer within {seconds:g} s")

    def result(self) -> Json:
        """The answer, which has arrived.

        Raises:
            McpError: The answer is an error, or the server has ended without one.

        """
        return self._server.take(self._number)

    def cancel(self) -> None:
        """Cancel the request; harmless when it has been answered."""
        with self._moment.condition:
            waited = self._server.answers.pop(self._number, None) is None
        if waited and not self._server.ended:
            params = {"requestId": self._number, "reason": "interrupted"}
            try:
                self._server.send({"method": "notifications/cancelled", "params": params})
            except McpError:
                pass  # it has ended, and the call with it
