"""HttpConnection, through which a program calls the tools of a server elsewhere.

It uses the newer generation of MCP, whose requests are independent: one POST a call, with the key
in a header. A caller that stops waiting closes its request, which cancels the call there.
"""

from __future__ import annotations

import base64
import contextlib
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self, cast

import anyio
import msgspec

from oubliette.api.connection import PollingListener
from oubliette.api.errors import Closed
from oubliette.api.http import repeatable
from oubliette.api.http.address import address, key_for
from oubliette.api.http.answers import (
    EventData,
    WholeDocument,
    away,
    json_object,
    refusal,
    rpc_error,
    strange,
    tool_result,
)
from oubliette.api.http.attempts import CONNECT_SECONDS, AttemptFailed, Outage
from oubliette.api.http.network_errors import failure
from oubliette.api.http.surroundings import http_client
from oubliette.errors import DeadlineExceeded, InvalidParameter
from oubliette.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    import httpx2

    OnProgress = Callable[[str], object]

CALL_SECONDS: Final = 60.0
RECONNECT_SECONDS: Final = 60.0
FIRST_SECONDS: Final = 5.0
"""Seconds for a server that was never reached: its address may be wrong."""
MARGIN: Final = 15.0  # seconds that an answer may take on top of the wait that a call asks for
IDLE_SECONDS: Final = 30.0  # that a connection is kept; servers keep theirs for longer
MAX_ANSWER: Final = 64 * 1024 * 1024  # bytes
VERSION: Final = "2026-07-28"
_OWN: Final = "io.modelcontextprotocol/"
_META: Final = {
    f"{_OWN}protocolVersion": VERSION,
    f"{_OWN}clientCapabilities": {},
    f"{_OWN}clientInfo": {"name": "oubliette-python", "version": __version__},
}
_ID: Final = 1  # of each request, which is alone in its POST
_WAITS: Final = ("wait_seconds", "max_seconds")
"""Parameters of tools that wait for news."""


class HttpConnection:
    """A connection to one server. Concurrent calls share its pool of HTTP connections.

    A call whose connection is lost is sent again, if that does no harm: reading, answering, and
    what has an idempotency key, which is generated where none is given. Others are sent again only
    if the server has not got them. So a restart of the server is a pause.

    Args:
        url: Address of the server, such as `http://127.0.0.1:8080/mcp`.
        token: API key; None: the one in `OUBLIETTE_KEY`, or in the file `OUBLIETTE_KEY_FILE`.
        timeout: Seconds for an answer, where a call gives none of its own.
        reconnect_seconds: Seconds from the loss of the server until a call gives up; 0: at once.

    Raises:
        InvalidParameter: the address or the key cannot be one.
        Unauthenticated: there is no key.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = CALL_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        self._url = address(url)
        self._key = key_for(token)
        self._reached = False
        self._timeout = timeout
        self._reconnect_seconds = reconnect_seconds
        self._http: httpx2.AsyncClient | None = None
        self._opening = anyio.Lock()
        self._calls: set[anyio.CancelScope] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address of the server."""
        return str(self._url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def listener(self, caller_id: str, *, after: int | None) -> PollingListener:
        """Return a listener to the events of a caller's sessions, by long polls.

        Args:
            caller_id: Of the caller.
            after: Cursor of an earlier listener; None: open requests, then events from now on.
        """
        return PollingListener(self, caller_id, after)

    async def aclose(self) -> None:
        """Close all HTTP connections. Open calls raise `Closed`, as later ones do."""
        self._closed = True
        for scope in self._calls:
            scope.cancel()
        with anyio.CancelScope(shield=True):  # closed also by a program that is cancelled
            async with self._opening:
                http, self._http = self._http, None
            if http is not None:
                await http.aclose()

    # ------------------------------------------------------------ calls
    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        """Call a tool of the server; return its result.

        Args:
            tool: Name of the tool.
            arguments: Its arguments; those that are None are left out.
            timeout: Seconds for an answer, or for the next progress; None: those of the connection,
                and the wait that the call asks for with some to spare.
            on_progress: Called with the progress of tools that report it.

        Raises:
            OublietteError: the tool failed; of the class of its code.
            InvalidParameter: the arguments are no JSON.
            Unauthenticated: the server does not accept the key.
            RateLimited: the server had too many calls for longer than reconnecting may take.
            DeadlineExceeded: the server did not answer in time.
            Unavailable: the server was not reachable for longer than reconnecting may take, or is
                none of ours.
            Closed: the connection was closed.
        """
        given = repeatable.with_key(tool, arguments)

        async def attempt() -> dict[str, Any]:
            params = {"name": tool, "arguments": given}
            seconds = self._seconds(given) if timeout is None else timeout
            result = await self._ask("tools/call", params, tool, seconds, on_progress)
            return tool_result(tool, result)

        return await self._endure(attempt, timeout, repeatable=repeatable.may_repeat(tool, given))

    async def tools(self) -> list[dict[str, Any]]:
        """Return the tools that the key may call, as in `tools/list`. Raises what `call` does."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}

        async def attempt() -> dict[str, Any]:
            return await self._ask("tools/list", params, None, self._timeout, None)

        while True:
            page = await self._endure(attempt, None, repeatable=True)
            found += page.get("tools") or []
            if not page.get("nextCursor") or not page.get("tools"):
                return found
            params = {"cursor": page["nextCursor"]}

    def _seconds(self, given: Mapping[str, Any]) -> float:
        """Return the seconds for an answer to a call with these arguments."""
        waits = [given.get(name) for name in _WAITS]
        told = [wait + MARGIN for wait in waits if isinstance(wait, int | float)]
        return max([self._timeout, *told])

    async def _endure(
        self,
        attempt: Callable[[], Awaitable[dict[str, Any]]],
        timeout: float | None,
        *,
        repeatable: bool,
    ) -> dict[str, Any]:
        most = self._reconnect_seconds
        limit = most if timeout is None else min(most, timeout)
        outage = Outage(limit, repeatable=repeatable)
        if not self._closed:
            with anyio.CancelScope() as scope:
                self._calls.add(scope)
                try:
                    return await outage.endure(attempt)
                finally:
                    self._calls.discard(scope)
        raise Closed(
            f"the connection to {self._url} is closed", hint="open another, and call within it"
        )

    # ------------------------------------------------------------ one attempt
    async def _ask(
        self,
        method: str,
        params: dict[str, Any],
        name: str | None,
        seconds: float,
        on_progress: OnProgress | None,
    ) -> dict[str, Any]:
        """Send a request; return the result in its answer."""
        import httpx2

        meta = _META if on_progress is None else {**_META, "progressToken": _ID}
        headers = {"Mcp-Method": method}
        if name is not None:
            headers["Mcp-Name"] = _header(name)
        body = _encoded({"id": _ID, "method": method, "params": {**params, "_meta": meta}})
        http = self._http or await self._open()
        handled = sys.exception()
        with anyio.move_on_after(seconds) as limit:

            def take(progress: str) -> None:
                limit.deadline = anyio.current_time() + seconds
                if on_progress is not None:
                    on_progress(progress)

            try:
                async with http.stream(
                    "POST", self._url, content=body, headers=headers
                ) as response:
                    self._reached = True
                    return await self._result(response, take)
            except httpx2.HTTPError as error:
                self._reached |= not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
                failed = failure(self._url, error, handled)
                if isinstance(failed, AttemptFailed) and not self._reached:
                    failed.most = FIRST_SECONDS
                raise failed from error
        raise DeadlineExceeded(f"{self._url} did not answer within {seconds:g} s")

    async def _result(
        self, response: httpx2.Response, take: Callable[[str], None]
    ) -> dict[str, Any]:
        """Return the result in a response; pass on the progress in it."""
        whole = WholeDocument()
        async with contextlib.aclosing(cast("Any", response.aiter_bytes())) as pieces:
            if response.status_code != HTTPStatus.OK:
                await self._read(whole, pieces, take)
                raise refusal(self._url, response, whole.end())
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/event-stream":
                found = await self._read(EventData(), pieces, take)
            elif kind == "application/json":
                await self._read(whole, pieces, take)
                found = self._found(whole.end(), take)
            else:
                raise strange(self._url, f"it answers with {kind or 'nothing'}")
        if found is not None:
            return found
        raise AttemptFailed(away(self._url, "it closed the connection without an answer"), "lost")

    async def _read(
        self,
        parser: EventData | WholeDocument,
        pieces: AsyncIterator[bytes],
        take: Callable[[str], None],
    ) -> dict[str, Any] | None:
        """Read until the result, or the end."""
        size = 0
        async for piece in pieces:
            size += len(piece)
            if size > MAX_ANSWER:
                raise strange(self._url, f"its answer has more than {MAX_ANSWER} bytes")
            for document in parser.feed(piece):
                found = self._found(document, take)
                if found is not None:
                    return found
        return None

    def _found(self, document: bytes, take: Callable[[str], None]) -> dict[str, Any] | None:
        """Return the result in a JSON-RPC message; None if it is another message."""
        message = json_object(document)
        if message is None:
            raise strange(self._url, "its answer is no JSON object")
        if "error" in message:
            raise rpc_error(message["error"])
        if message.get("method") == "notifications/progress":
            _tell(message.get("params"), take)
        result = message.get("result")
        if message.get("id") == _ID and isinstance(result, dict):
            return cast("dict[str, Any]", result)
        return None

    async def _open(self) -> httpx2.AsyncClient:
        """Return the HTTP client, which is made once."""
        import httpx2

        async with self._opening:
            if self._http is None:
                # No redirect is followed: the key is for this server alone.
                self._http = await http_client(
                    self._url,
                    headers={
                        "Authorization": f"Bearer {self._key}",
                        "Accept": "application/json, text/event-stream",
                        "Content-Type": "application/json",
                        "MCP-Protocol-Version": VERSION,
                    },
                    timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
                    limits=httpx2.Limits(
                        max_connections=None,
                        max_keepalive_connections=20,
                        keepalive_expiry=IDLE_SECONDS,
                    ),
                )
            return self._http


def _header(name: str) -> str:
    """Return a tool's name as the value of a header."""
    if name and all("!" <= each <= "~" for each in name) and not name.startswith("=?"):
        return name
    return f"=?base64?{base64.b64encode(name.encode('utf-8', 'replace')).decode()}?="


def _encoded(request: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode({"jsonrpc": "2.0", **request})
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidParameter(
            f"arguments: cannot be sent as JSON: {error}",
            field="arguments",
            hint="numbers, texts, booleans, lists and dicts with texts as keys",
        ) from error


def _tell(params: object, take: Callable[[str], None]) -> None:
    """Pass on a notification of progress."""
    told = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
    if told.get("progressToken") == _ID:
        of = f"/{told['total']}" if told.get("total") is not None else ""
        take(str(told.get("message") or f"{told.get('progress', '')}{of}"))
