"""MCP server for the agent, over lines, in both generations of the protocol.

Handshake clients (2024-11-05 to 2025-11-25) open with `initialize`; 2026-07-28 clients send no
handshake but an envelope in each request's `_meta`. Answers are those of the official SDK's stdio
server, except that an unreadable line is answered, and that `server/discover` alone does not yet
bind the agent to the newer generation.
"""

from __future__ import annotations

import json
import math
import sys

from .. import wire
from ..io.json_values import as_array, as_object
from .requests import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    META_CAPABILITIES,
    META_SUBSCRIPTION,
    META_VERSION,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    SERVER_INFO,
    UNSUPPORTED_VERSION,
    AgentRequest,
    Fault,
    RequestBatch,
    error_message,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, Union

    Json = dict[str, Any]
    RequestId = Union[str, int, float]

    class Toolbox(Protocol):
        """Implementation of `tools/list` and `tools/call`."""

        def list_tools(self, request: AgentRequest) -> None:
            """Answer with the tools, immediately or later."""
            ...

        def call_tool(self, request: AgentRequest, name: str, arguments: Json) -> None:
            """Answer with the outcome, eventually."""
            ...


HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)

MAX_SUBSCRIPTIONS = 64

CAPABILITIES = {"tools": {"listChanged": True}}
INSTRUCTIONS = (
    "You run in a container of Oubliette. session_message gives work to further agents. Tools "
    "named oubliette_* act on Oubliette itself; other tools named <caller>_<tool> are provided by "
    "the program that sent you and run on its side."
)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # else NaN and Infinity would pass


class StdioMcpServer:
    """Reads the agent's lines and answers them; `write` sends bytes to the agent."""

    def __init__(self, toolbox: Toolbox, write: Callable[[bytes], None]) -> None:
        self._toolbox = toolbox
        self._write = write
        self._open: dict[tuple[type, RequestId], AgentRequest] = {}
        self._subscriptions: dict[tuple[type, RequestId], AgentRequest] = {}
        self._generation = ""  # "handshake" or "modern", once the agent has chosen
        self._initialized = False
        self._listed = False  # before the first list there is nothing that could change

    # Interface for the rest of the client

    def answer_list(self, request: AgentRequest, entries: list[Json]) -> None:
        self._listed = True
        fresh: Json = {"ttlMs": 0, "cacheScope": "private"} if request.modern else {}
        request.answer({"tools": entries, **fresh})

    def line(self, line: bytes | wire.OversizeLine) -> None:
        """Process one line of the agent. Never raises."""
        try:
            self._line(line)
        except Exception:
            _print_trace()
            self.send(error_message(None, INTERNAL_ERROR, "oubliette-client failed at this line"))

    def tools_changed(self) -> bool:
        """Notify the agent, as its generation requires, that the tool list has changed.

        Returns:
            Whether it has a list that is out of date, and has now been notified.

        """
        if self._initialized and self._listed:
            self.notify("notifications/tools/list_changed", None)
        for request in self._subscriptions.values():
            meta = {META_SUBSCRIPTION: request.request_id}
            self.notify("notifications/tools/list_changed", {"_meta": meta})
        return self._listed and (self._initialized or bool(self._subscriptions))

    def notify(self, method: str, params: Json | None) -> None:
        note: Json = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            note["params"] = params
        self.send(note)

    def send(self, message: object) -> None:
        """Send one message, or an error in its place if it cannot be written as JSON."""
        try:
            line = wire.encode_json(message)
        except (ValueError, RecursionError) as error:
            request_id = (as_object(message) or {}).get("id")
            reason = f"the result cannot be written as JSON: {error}"
            line = wire.encode_json(error_message(request_id, INTERNAL_ERROR, reason))
        self._write(line)

    def settled(self, request: AgentRequest) -> bool:
        key = (type(request.request_id), request.request_id)
        if self._open.get(key) is not request:
            return False
        del self._open[key]
        self._subscriptions.pop(key, None)
        return True

    # Lines

    def _line(self, line: bytes | wire.OversizeLine) -> None:
        if isinstance(line, wire.OversizeLine):
            self.send(error_message(line.request_id, INVALID_REQUEST, str(line)))
            return
        if not line.strip():
            return
        try:
            message: Any = _DECODER.decode(line.decode())
        except UnicodeDecodeError:
            self.send(error_message(None, PARSE_ERROR, "Parse error: the line is not UTF-8"))
        except (ValueError, RecursionError) as error:
            self.send(error_message(_id_in(line), PARSE_ERROR, f"Parse error: {error}"))
        else:
            messages = as_array(message)
            if messages is None:
                self._message(message, None)
            else:
                self._array(messages)

    def _array(self, messages: list[Any]) -> None:
        if not messages:
            self.send(error_message(None, INVALID_REQUEST, "Invalid Request: an empty array"))
            return
        batch = RequestBatch(self.send)
        for message in messages:
            self._message(message, batch)
        batch.closed(None)

    def _message(self, message: object, batch: RequestBatch | None) -> None:
        fields = as_object(message)
        reason = "not an object" if fields is None else _malformed(fields)
        if fields is None or reason:
            reply = error_message(None, INVALID_REQUEST, f"Invalid Request: {reason}")
            if batch is None:
                self.send(reply)
            else:
                batch.opened()
                batch.closed(reply)
            return
        if "method" not in fields:
            return  # an answer, but we send the agent no requests
        params: object = fields.get("params")
        if "id" in fields:
            self._request(fields["id"], fields["method"], params, batch)
        else:
            self._notification(fields["method"], as_object(params) or {})

    def _notification(self, method: str, params: Json) -> None:
        if method == "notifications/cancelled":
            target: object = params.get("requestId")
            # agents cancel finished calls as well, as a matter of course
            if isinstance(target, (str, int, float)):
                request = self._open.get((type(target), target))
                if request is not None:
                    request.cancelled()
        elif method == "notifications/initialized" and self._generation == "handshake":
            self._initialized = True

    def _request(
        self, request_id: RequestId, method: str, params: object, batch: RequestBatch | None
    ) -> None:
        given = as_object({} if params is None else params)
        meta = as_object((given or {}).get("_meta"))
        request = AgentRequest(self, request_id, meta or {}, batch)
        if batch is not None:
            batch.opened()
        key = (type(request_id), request_id)
        if key in self._open:
            reply = error_message(request_id, INVALID_REQUEST, "Invalid Request: this id is in use")
            if batch is None:
                self.send(reply)
            else:
                batch.closed(reply)
            return
        self._open[key] = request
        try:
            if given is None:
                request.fail(INVALID_PARAMS, "params must be an object")
            elif request.modern and method != "initialize":
                self._modern(request, method, given)
            else:
                self._handshake(request, method, given, in_batch=batch is not None)
        except Fault as fault:
            request.fail(fault.code, str(fault), fault.data)
        except Exception:
            _print_trace()
            request.fail(INTERNAL_ERROR, "oubliette-client failed at this request")

    # The two generations

    def _handshake(
        self, request: AgentRequest, method: str, params: Json, *, in_batch: bool
    ) -> None:
        if self._generation == "modern":
            if method != "initialize":
                raise Fault(INVALID_PARAMS, _needs_envelope())
            raise Fault(
                UNSUPPORTED_VERSION,
                "connection is serving the 2026-07-28 protocol; "
                "the initialize handshake is not accepted",
                {"supported": list(MODERN_VERSIONS), "requested": params.get("protocolVersion")},
            )
        request.modern = False
        if method == "initialize":
            if in_batch:
                raise Fault(INVALID_REQUEST, "initialize must not be part of an array")
            self._generation = "handshake"
            wanted: object = params.get("protocolVersion")
            known = wanted in HANDSHAKE_VERSIONS
            request.answer(
                {
                    "protocolVersion": wanted if known else HANDSHAKE_VERSIONS[-1],
                    "capabilities": CAPABILITIES,
                    "serverInfo": SERVER_INFO,
                    "instructions": INSTRUCTIONS,
                }
            )
        elif method == "ping":
            request.answer({})
        elif method not in ("tools/list", "tools/call"):
            raise Fault(METHOD_NOT_FOUND, f"Method not found: {method}", method)
        elif not self._generation:
            raise Fault(INVALID_PARAMS, f"{method} before initialize")
        else:
            self._tools(request, method, params)

    def _modern(self, request: AgentRequest, method: str, params: Json) -> None:
        meta: Json = params["_meta"]
        version: object = meta[META_VERSION]
        if self._generation == "handshake":
            request.modern = False
            raise Fault(
                INVALID_REQUEST,
                "this connection serves the handshake protocol era; requests carrying the "
                "2026-07-28 envelope are not accepted on it",
            )
        if META_CAPABILITIES not in meta or not isinstance(version, str):
            raise Fault(INVALID_PARAMS, _needs_envelope())
        if version not in MODERN_VERSIONS:
            supported = {"supported": list(MODERN_VERSIONS), "requested": version}
            raise Fault(UNSUPPORTED_VERSION, "Unsupported protocol version", supported)
        if method == "server/discover":
            # a probe: a client that then finds no common version may still send `initialize`
            request.answer(
                {
                    "supportedVersions": list(MODERN_VERSIONS),
                    "capabilities": CAPABILITIES,
                    "instructions": INSTRUCTIONS,
                    "ttlMs": 0,
                    "cacheScope": "private",
                }
            )
            return
        self._generation = "modern"
        if method == "subscriptions/listen":
            self._listen(request, params)
        elif method in ("tools/list", "tools/call"):
            self._tools(request, method, params)
        else:
            raise Fault(METHOD_NOT_FOUND, f"Method not found: {method}", method)

    def _listen(self, request: AgentRequest, params: Json) -> None:
        wanted = as_object(params.get("notifications"))
        if wanted is None:
            raise Fault(INVALID_PARAMS, "notifications must be an object")
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Fault(INTERNAL_ERROR, "Subscription limit reached")
        honored: Json = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        meta = {META_SUBSCRIPTION: request.request_id}
        acknowledged = {"_meta": meta, "notifications": honored}
        self.notify("notifications/subscriptions/acknowledged", acknowledged)
        if honored:
            key = (type(request.request_id), request.request_id)
            self._subscriptions[key] = request

    def _tools(self, request: AgentRequest, method: str, params: Json) -> None:
        if method == "tools/list":
            self._toolbox.list_tools(request)
            return
        name: object = params.get("name")
        given = params.get("arguments")
        arguments = as_object({} if given is None else given)
        if not isinstance(name, str):
            raise Fault(INVALID_PARAMS, "name must be a string")
        if arguments is None:
            raise Fault(INVALID_PARAMS, "arguments must be an object")
        self._toolbox.call_tool(request, name, arguments)


def _id_in(line: bytes) -> RequestId | None:
    """The id of a request that is JSON but for NaN or Infinity, as some libraries write them."""
    try:
        request_id: object = (as_object(json.loads(line)) or {}).get("id")
    except (ValueError, RecursionError):
        return None
    if isinstance(request_id, (str, int)) and not isinstance(request_id, bool):
        return request_id
    return None


def _malformed(fields: Json) -> str:
    """Return why this is no JSON-RPC message; empty if it is one."""
    if fields.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if "method" in fields:
        if not isinstance(fields["method"], str):
            return "method must be a string"
        request_id: object = fields.get("id", 0)
        if not isinstance(request_id, (str, int, float)) or isinstance(request_id, bool):
            return "id must be a string or a number"
        if isinstance(request_id, float) and not math.isfinite(request_id):
            return "id must be a string or a number"
    elif "result" not in fields and "error" not in fields:
        return "method is missing"
    return ""


def _print_trace() -> None:
    import traceback  # 4 ms of every start, for what should never happen

    traceback.print_exc(file=sys.stderr)


def _needs_envelope() -> str:
    return f"params._meta must carry {META_VERSION} and {META_CAPABILITIES}"
