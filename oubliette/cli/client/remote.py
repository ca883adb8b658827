"""Client of a remote server's tools: one POST a call, with a key, over HTTP.

It uses the newer generation of MCP, whose requests are independent; a caller that stops waiting
closes the connection, which cancels the call there.
"""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self, cast

import httpx2

from oubliette.cli.client.address import PATH
from oubliette.cli.client.control import RemoteError
from oubliette.errors import (
    DeadlineExceeded,
    Forbidden,
    OublietteError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from oubliette.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

CONNECT_SECONDS: Final = 10.0
MAX_ANSWER: Final = 64 * 1024 * 1024  # bytes
_VERSION: Final = "2026-07-28"
_OWN: Final = "io.modelcontextprotocol/"
_ERROR: Final = "dev.oubliette/error"
_META: Final = {
    f"{_OWN}protocolVersion": _VERSION,
    f"{_OWN}clientCapabilities": {},
    f"{_OWN}clientInfo": {"name": "oubliette-call", "version": __version__},
}
_CODES: Final = {-32602: "invalid_parameter", -32001: "unauthenticated", -32002: "forbidden"}


class RemoteServer:
    """Client of one remote server. Use as a context manager.

    Args:
        url: from `address.address`.
        key: from `address.key_of`.
        timeout: timeout of each answer in seconds.
    """

    def __init__(self, url: httpx2.URL, key: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        # No redirect is followed: the key is for this server alone.
        self._http = httpx2.Client(
            headers={
                "Authorization": f"Bearer {key}",
                "Accept": "application/json, text/event-stream",
                "MCP-Protocol-Version": _VERSION,
            },
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool.

        Raises:
            RemoteError: the tool failed.
            Unauthenticated: the server does not accept the key.
            DeadlineExceeded: the server did not answer in time.
            Unavailable: the server is not reachable, or no server of ours.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        result = self._ask("tools/call", {"name": tool, "arguments": given}, tool)
        if not result.get("isError"):
            found = result.get("structuredContent")
            return cast("dict[str, Any]", found) if isinstance(found, dict) else result
        error = cast("dict[str, Any]", result.get("_meta") or {}).get(_ERROR)
        if isinstance(error, dict):
            raise RemoteError(cast("dict[str, Any]", error))
        raise RemoteError({"message": _text(result) or f"{tool} failed"})

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that the key may call, as in `tools/list`. Raises what `call` does."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            page = self._ask("tools/list", params, None)
            found += page.get("tools") or []
            if not page.get("nextCursor") or not page.get("tools"):
                return found
            params = {"cursor": page["nextCursor"]}

    def _ask(self, method: str, params: dict[str, Any], name: str | None) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": _META}}
        headers = {"Mcp-Method": method}
        if name is not None:
            headers["Mcp-Name"] = name
        until = time.monotonic() + self._timeout
        try:
            with self._http.stream("POST", self._url, json=body, headers=headers) as answer:
                if answer.status_code != HTTPStatus.OK:
                    raise self._refusal(answer, self._body(answer, until))
                return self._result(answer, until)
        except httpx2.TimeoutException as error:
            if isinstance(error, httpx2.ConnectTimeout):
                raise self._away("it does not take the connection") from error
            raise self._late() from error
        except httpx2.HTTPError as error:
            raise self._away(_why(error)) from error

    def _body(self, answer: httpx2.Response, until: float) -> bytes:
        return b"".join(self._pieces(answer, until))

    def _pieces(self, answer: httpx2.Response, until: float) -> Generator[bytes]:
        size = 0
        for piece in answer.iter_bytes():
            size += len(piece)
            if size > MAX_ANSWER:
                raise self._strange(f"its answer has more than {MAX_ANSWER} bytes")
            yield piece
            if time.monotonic() >= until:
                raise self._late()

    def _result(self, answer: httpx2.Response, until: float) -> dict[str, Any]:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            documents: Iterable[bytes] = _events(self._pieces(answer, until))
        elif kind == "application/json":
            documents = (self._body(answer, until),)
        else:
            raise self._strange(f"it answers with {kind or 'nothing'}")
        for document in documents:
            message = _object(document)
            if message is None:
                raise self._strange("its answer is no JSON object")
            if "error" in message:
                raise RemoteError(_rpc_error(message["error"]))
            if message.get("id") == 1 and isinstance(message.get("result"), dict):
                return message["result"]
        raise self._away("it closed the connection without an answer")

    def _refusal(self, answer: httpx2.Response, body: bytes) -> OublietteError:
        """Return the error for an HTTP status other than 200."""
        status = answer.status_code
        message = _object(body) or {}
        error = _rpc_error(message["error"]) if "error" in message else None
        reason = str(error["message"]) if error is not None else f"HTTP {status}"
        if status == HTTPStatus.UNAUTHORIZED:
            return Unauthenticated(
                f"{self._url}: {reason.partition(' (hint:')[0]}",
                hint="oubliette token create, on the machine of the server, makes a key; give it in"
                " OUBLIETTE_KEY or with --key-file",
            )
        if status == HTTPStatus.FORBIDDEN:
            return Forbidden(f"{self._url}: {reason}")
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return RateLimited(f"{self._url}: {reason}")
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return Unavailable(f"{self._url}: {reason}", hint="try again in a moment")
        if error is not None:
            return RemoteError(error)
        if answer.is_redirect:
            return self._strange(f"it points to {answer.headers.get('location', 'nowhere')}")
        return self._strange(f"it answers HTTP {status}")

    def _away(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._url}: {why}",
            hint="is a server running there? Its address is the first line that it prints",
        )

    def _strange(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._url} is no Oubliette server: {why}",
            hint=f"the address of a server ends in {PATH}",
        )

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self._url} did not answer within {self._timeout:g} s")


def _events(pieces: Iterable[bytes]) -> Generator[bytes]:
    """Iterate over the data of server-sent events."""
    pending = b""
    for piece in pieces:
        *events, pending = (pending + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                yield b"\n".join(data)


def _object(document: bytes) -> dict[str, Any] | None:
    try:
        found: object = json.loads(document)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _rpc_error(error: object) -> dict[str, Any]:
    """Return the error for a JSON-RPC error."""
    found = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code = found.get("code")
    return {
        "code": _CODES.get(code, "error") if isinstance(code, int) else "error",
        "message": str(found.get("message") or "the server gives no reason"),
    }


def _text(result: dict[str, Any]) -> str:
    blocks: Any = result.get("content")
    if not isinstance(blocks, list):
        return ""
    texts = [
        cast("dict[str, Any]", block).get("text", "")
        for block in cast("list[Any]", blocks)
        if isinstance(block, dict)
    ]
    return "\n".join(map(str, texts))


def _why(error: httpx2.HTTPError) -> str:
    """Return the operating system's reason, which is at the bottom of the chain."""
    found: BaseException = error
    while (below := found.__cause__ or found.__context__) is not None:
        found = below
    if isinstance(found, ConnectionRefusedError):
        return "connection refused"
    return getattr(found, "strerror", None) or str(found) or type(error).__name__
