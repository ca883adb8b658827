"""Scripted callers: foreign MCP clients that provide Python functions as tools.

They drive the protocol for the tests, and share nothing with the client of `oubliette.connect`, so
that a mistake which both ends of ours have in common is seen.

`SdkCaller` uses the official SDK, in either generation; `HttpCaller` sends bare HTTP to the same
server. Both store the events that they receive, answer tool requests with their functions, and keep
the cursor, so that they can listen again without a gap.

    async with SdkCaller(url, token, tools={"add": lambda a, b: a + b}) as caller:
        project = await caller.call("project_create", name="demo")
        await caller.listen()
        await caller.call("session_spawn", project_id=project["id"], prompt="call …")
        done = await caller.event("completion")
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import httpx2
import tenacity
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from oubliette.mcp_front.sdk import LOAD_SECONDS
from tests.http_client import HttpClient, HttpError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    import mcp_types as t

Tool = Callable[..., Any]
Mode = Literal["auto", "legacy"]
ERROR_KEY = "dev.oubliette/error"
MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
LISTEN_SECONDS = LOAD_SECONDS + 10
"""For a listener to be registered, which waits until the server has loaded the MCP library."""
TOOL_REQUEST = "caller_tool_request"
PERMISSION_REQUEST = "permission_request"
Decide = Callable[[dict[str, Any]], dict[str, Any] | str | None]
"""From a permission_request event to `allow`, `deny`, all of `permission_response`, or nothing."""


class ToolFailed(Exception):
    """The server's tool answered with an error."""

    def __init__(self, text: str, structured: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.structured = structured or {}


def spec_of(name: str, function: Tool, *, durable: bool = False) -> dict[str, Any]:
    """Return the entry of a function in `caller_tools`: its name, docstring and parameters."""
    parameters = inspect.signature(function).parameters
    return {
        "name": name,
        "description": inspect.getdoc(function) or name,
        "inputSchema": {
            "type": "object",
            "properties": {parameter: {} for parameter in parameters},
            "required": [
                parameter.name
                for parameter in parameters.values()
                if parameter.default is parameter.empty
            ],
        },
        "durable": durable,
    }


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return one context for all: reading the system's certificates takes 0.2 s each time."""
    return ssl.create_default_context()


def _error(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"error": (meta or {}).get(ERROR_KEY, {})}


def _refused_for_now(error: BaseException) -> bool:
    """Return whether it is 429: the request may be repeated, and an answer must not be lost."""
    if isinstance(error, HttpError):
        return error.status == 429
    return isinstance(error, MCPError) and str(error).startswith("too many calls")


def _insisting() -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_refused_for_now),
        wait=tenacity.wait_fixed(1.0),  # the Retry-After of the usual rates
        stop=tenacity.stop_after_attempt(20),
        reraise=True,
    )


class Caller(abc.ABC):
    """Common part of both kinds of caller: events and their answers."""

    def __init__(
        self,
        *,
        caller_id: str = "tester",
        tools: Mapping[str, Tool] | None = None,
        durable: bool = False,
        answers: bool = True,
        decide: Decide | None = None,
    ) -> None:
        self.caller_id = caller_id
        self.tools = dict(tools or {})
        self.answers = answers
        """Whether tool requests are answered; without it they are only stored."""
        self.decide = decide
        """Answer to permission requests of agents; without it none is sent."""
        self.specs = [spec_of(name, tool, durable=durable) for name, tool in self.tools.items()]
        self.events: list[dict[str, Any]] = []
        """All events, in the order of arrival."""
        self.next: int | None = None
        """Cursor for the next listener."""
        self.ended: str | None = None
        """Reason of the last listener's end."""
        self.answered: set[str] = set()
        """Requests accepted; a repeated one is not run again."""
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool of the server; return its structured answer.

        Raises:
            ToolFailed: the tool failed.
        """

    @property
    def context(self) -> dict[str, Any]:
        """Return `context` for session_spawn: this caller and its tools."""
        return {"caller_id": self.caller_id, "caller_tools": self.specs}

    # ------------------------------------------------------------ events
    def take(self, event: dict[str, Any]) -> None:
        """Store an event, and answer it if it is a request."""
        if "seq" in event:
            self.next = max(self.next or 0, event["seq"])
        self.events.append(event)
        self._news.set()
        self._news = asyncio.Event()
        if event.get("type") == TOOL_REQUEST and self.answers:
            self._start(self._answer(event))
        elif event.get("type") == PERMISSION_REQUEST and self.decide is not None:
            self._start(self._decide(event))

    async def event(
        self,
        kind: str | None = None,
        *,
        after: int = 0,
        timeout: float = 10.0,
        **fields: Any,
    ) -> dict[str, Any]:
        """Return the first event of this type and with these fields, from position `after` on.

        Raises:
            TimeoutError: none came in time.
        """
        async with asyncio.timeout(timeout):
            while True:
                news = self._news
                looked, after = after, len(self.events)
                for event in self.events[looked:]:
                    if (kind is None or event.get("type") == kind) and all(
                        event.get(name) == value for name, value in fields.items()
                    ):
                        return event
                await news.wait()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of this type so far."""
        return [event for event in self.events if event.get("type") == kind]

    async def _answer(self, event: dict[str, Any]) -> None:
        request_id = event["request_id"]
        if request_id in self.answered:
            return
        self.answered.add(request_id)
        answer: dict[str, Any] = {"session_id": event["session_id"], "request_id": request_id}
        try:
            if "ref" in event:
                event = await self.whole(event)
            result = self.tools[event["tool"]](**event.get("arguments", {}))
            answer["result"] = await result if inspect.isawaitable(result) else result
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        # Too late is no failure of this caller: the request was settled in another way.
        with contextlib.suppress(ToolFailed):
            await _insisting()(self.call, "caller_tool_response", **answer)

    async def _decide(self, event: dict[str, Any]) -> None:
        assert self.decide is not None
        said = self.decide(event)
        if said is not None and event["request_id"] not in self.answered:
            self.answered.add(event["request_id"])
            more = {"decision": said} if isinstance(said, str) else said
            with contextlib.suppress(ToolFailed):  # too late: it was denied at its deadline
                await self.permit(event, **more)

    async def permit(
        self, event: dict[str, Any], decision: str = "allow", **more: Any
    ) -> dict[str, Any]:
        """Answer a permission_request event.

        Raises:
            ToolFailed: the request is not open any more, or not this caller's.
        """
        return await self.call(
            "permission_response",
            session_id=event["session_id"],
            request_id=event["request_id"],
            decision=decision,
            **more,
        )

    async def whole(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event that came by reference, read in pieces."""
        text, offset = "", 0
        while True:
            piece = await self.call("event_read", **event["ref"], offset=offset)
            text += piece["data"]
            offset = piece["next_offset"]
            if offset is None or offset >= piece["total"]:
                return {**json.loads(text), **{key: event[key] for key in event if key != "ref"}}

    # ------------------------------------------------------------ listening
    async def listen(
        self, *, after: int | None = None, observe: bool = False, timeout: float = LISTEN_SECONDS
    ) -> None:
        """Open a listener, and wait until the server has registered it.

        Raises:
            TimeoutError: it was not registered in time.
        """
        await self.stop_listening()
        place = len(self.events)
        self._listener = self._start(self._listen(after, observe=observe))
        began = asyncio.ensure_future(self.event("listening", after=place, timeout=timeout))
        await asyncio.wait({began, self._listener}, return_when=asyncio.FIRST_COMPLETED)
        if began.done():
            await began
            return
        began.cancel()
        await self._listener
        raise ConnectionError(f"the listener ended: {self.ended}")

    async def _listen(self, after: int | None, *, observe: bool) -> None:
        arguments: dict[str, Any] = {"caller_id": self.caller_id, "observe": observe}
        if self.specs and not observe:
            arguments["caller_tools"] = self.specs
        if after is not None:
            arguments["after"] = after
        answer = await self.call("caller_listen", **arguments)
        self.ended = answer["ended"]
        self.next = answer["next"]

    async def listener_ended(self, timeout: float = 10.0) -> str | None:
        """Wait for the end of the listener; return its reason."""
        assert self._listener is not None
        async with asyncio.timeout(timeout):
            await asyncio.wait({self._listener})
        return self.ended

    async def stop_listening(self) -> None:
        """Close the listener, if there is one."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None

    async def _end_tasks(self) -> None:
        await self.stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its waiter gets it; a lost connection is expected


class SdkCaller(Caller):
    """Caller on the official SDK: `auto` is the newest generation, `legacy` the handshake."""

    def __init__(
        self, url: str, token: str, *, mode: Mode = "auto", events: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(30, read=300),
            verify=_tls(),
        )
        self.client = Client(
            streamable_http_client(url, http_client=self._http),
            mode=mode,
            logging_callback=self._on_log,
            log_level="info" if events else None,
        )
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._http)
        await self._stack.enter_async_context(self.client)
        # The SDK validates each answer against the tool's schema, and would list the tools for that
        # after the first answer: too late if that one was `server stopping`.
        await self.client.list_tools()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_tasks()
        await self._stack.aclose()

    async def _on_log(self, params: t.LoggingMessageNotificationParams) -> None:
        data: object = params.data
        if isinstance(data, dict):
            self.take(cast("dict[str, Any]", data))

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool of the server; return its structured answer.

        Raises:
            ToolFailed: the tool failed.
        """
        answer: Any = await self.client.call_tool(tool, arguments)
        text = "".join(getattr(part, "text", "") for part in answer.content)
        if answer.is_error:
            raise ToolFailed(text, _error(answer.meta))
        found: dict[str, Any] = answer.structured_content or {}
        return found


class HttpCaller(Caller):
    """Caller on bare HTTP, of either generation."""

    def __init__(self, url: str, token: str, *, mode: Mode = "auto", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.modern = mode == "auto"
        self.http = HttpClient(url, {"Authorization": f"Bearer {token}"})
        self.session_id: str | None = None
        self._ids = itertools.count(1)

    async def __aenter__(self) -> Self:
        if not self.modern:
            await self._initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_tasks()
        await self.http.aclose()

    async def _initialize(self) -> None:
        body = {
            "jsonrpc": "2.0",
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": HANDSHAKE,
                "capabilities": {},
                "clientInfo": {"name": "http-caller", "version": "1"},
            },
        }
        async with self.http.request("POST", json_body=body) as response:
            if response.status != 200:
                raise HttpError(response.status, response.headers, await response.body())
            self.session_id = response.headers["mcp-session-id"]
            async for _ in response.messages():
                pass
        self.http.headers["mcp-session-id"] = self.session_id
        self.http.headers["mcp-protocol-version"] = HANDSHAKE
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        async with self.http.request("POST", json_body=note) as response:
            await response.body()

    def message(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return a JSON-RPC request of this generation."""
        if self.modern:
            params = {
                **params,
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": MODERN,
                    "io.modelcontextprotocol/clientCapabilities": {},
                    "io.modelcontextprotocol/clientInfo": {"name": "http-caller", "version": "1"},
                    "io.modelcontextprotocol/logLevel": "info",
                },
            }
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request; return its result. Notifications in its response are stored as events.

        Raises:
            HttpError: the server refused it.
            ToolFailed: the answer is a JSON-RPC error.
        """
        headers: dict[str, str] = {}
        if self.modern:
            headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
            if "name" in params:
                headers["mcp-name"] = params["name"]
        body = self.message(method, params)
        async with self.http.request("POST", json_body=body, headers=headers) as response:
            if response.status >= 400:
                raise HttpError(response.status, response.headers, await response.body())
            answer: Any = None
            async for message in response.messages():
                if message.get("method") == "notifications/message":
                    self.take(message["params"]["data"])
                elif message.get("id") == body["id"]:
                    answer = message
        if answer is None:
            raise ConnectionResetError("the stream ended without an answer")
        if "error" in answer:
            raise ToolFailed(answer["error"]["message"], answer["error"])
        return answer["result"]

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool of the server; return its structured answer.

        Raises:
            ToolFailed: the tool failed.
        """
        result = await self.ask("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise ToolFailed(result["content"][0]["text"], _error(result.get("_meta")))
        structured: dict[str, Any] = result.get("structuredContent") or {}
        return structured

    async def open_get_stream(self) -> None:
        """Open the GET stream of a handshake session; wait until the server has registered it."""
        opened = asyncio.get_running_loop().create_future()
        task = self._start(self._get_stream(opened))
        await asyncio.wait({opened, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task

    async def _get_stream(self, opened: asyncio.Future[None]) -> None:
        async with self.http.request("GET") as response:
            if response.status != 200:
                raise HttpError(response.status, response.headers, await response.body())
            opened.set_result(None)
            async for message in response.messages():
                if message.get("method") == "notifications/message":
                    self.take(message["params"]["data"])
