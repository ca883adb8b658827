"""Request of the agent, and its answer in either generation of MCP."""

from __future__ import annotations

from ..io.json_values import as_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, Union

    Json = dict[str, Any]
    RequestId = Union[str, int, float]

    class Answerer(Protocol):
        """Methods that a request needs of the server that read it."""

        def send(self, message: object) -> None: ...

        def notify(self, method: str, params: Json | None) -> None: ...

        def settled(self, request: AgentRequest) -> bool:
            """Close a request; False if it was closed already."""
            ...


VERSION = "0.1.0"
SERVER_INFO = {"name": "oubliette-client", "title": "Oubliette", "version": VERSION}

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_VERSION = -32022


class Fault(Exception):
    """JSON-RPC error that answers a request."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class RequestBatch:
    """Collector of the answers to one array of requests (2025-03-26), to send them as one."""

    def __init__(self, send: Callable[[object], None]) -> None:
        self._send = send
        self._answers: list[Json] = []
        self._open = 1  # the reader itself, until the whole array is handed out

    def opened(self) -> None:
        self._open += 1

    def closed(self, answer: Json | None) -> None:
        """Note that a request has ended, with or without an answer."""
        if answer is not None:
            self._answers.append(answer)
        self._open -= 1
        if not self._open and self._answers:
            self._send(self._answers)


class AgentRequest:
    """One request of the agent, answered at most once."""

    __slots__ = ("_batch", "_progress", "_server", "modern", "on_cancel", "request_id", "token")

    def __init__(
        self, server: Answerer, request_id: RequestId, meta: Json, batch: RequestBatch | None
    ) -> None:
        self._server = server
        self._batch = batch
        self._progress = 0
        self.request_id = request_id
        self.modern = META_VERSION in meta  # and answered so, unless it violates the generation
        token: object = meta.get("progressToken")
        self.token = token if isinstance(token, (str, int)) else None
        self.on_cancel: Callable[[], None] | None = None

    def answer(self, result: Json) -> None:
        if self.modern:
            stamped = {META_SERVER: SERVER_INFO, **(as_object(result.get("_meta")) or {})}
            result = {"resultType": "complete", **result, "_meta": stamped}
        self._settle({"jsonrpc": "2.0", "id": self.request_id, "result": result})

    def fail(self, code: int, message: str, data: object = None) -> None:
        self._settle(error_message(self.request_id, code, message, data))

    def progress(self, message: str) -> None:
        """Send the agent a progress notification, if it requested one."""
        if self.token is not None:
            self._progress += 1
            params: Json = {"progressToken": self.token, "progress": self._progress}
            if message:
                params["message"] = message
            self._server.notify("notifications/progress", params)

    def cancelled(self) -> None:
        """Stop the work; a cancelled request is not answered."""
        if self._server.settled(self):
            if self.on_cancel is not None:
                self.on_cancel()
            if self._batch is not None:
                self._batch.closed(None)

    def _settle(self, reply: Json) -> None:
        if not self._server.settled(self):
            return
        if self._batch is None:
            self._server.send(reply)
        else:
            self._batch.closed(reply)


def error_message(
    request_id: RequestId | None, code: int, message: str, data: object = None
) -> Json:
    error: Json = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}
