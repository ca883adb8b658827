"""Answers of a server: HTTP responses, JSON documents or server-sent events, as results of tools.

Each failure is an `OublietteError`, or an `AttemptFailed` if another attempt may succeed.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.api.errors import from_wire
from oubliette.api.http.address import PATH
from oubliette.api.http.attempts import AttemptFailed
from oubliette.api.http.surroundings import by_proxy
from oubliette.errors import (
    Forbidden,
    OublietteError,
    RateLimited,
    StorageUnavailable,
    Unauthenticated,
    Unavailable,
)

if TYPE_CHECKING:
    import httpx2

ERROR_KEY: Final = "dev.oubliette/error"
"""Key in `_meta` of a tool's error, with code, message, hint and field."""
_UNKNOWN_TOOL: Final = "Unknown tool"
_CODES: Final = {-32602: "invalid_parameter", -32001: "unauthenticated", -32002: "forbidden"}
_AWAY: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE})
"""Answers of a server that stops, and of a proxy before one that is away."""
_LONGEST_PAUSE: Final = 3600  # seconds; of a header that a proxy may have made


class EventData:
    """Parser of server-sent events, as far as servers of ours send them: their data."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that end in this piece of the stream."""
        if b"\n" not in piece:
            self._line += piece
            return []
        first, *lines = piece.split(b"\n")
        self._line += first
        lines.insert(0, bytes(self._line))
        self._line = bytearray(lines.pop())
        found: list[bytes] = []
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found


class WholeDocument:
    """The only document of an answer, which is complete at the end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Keep this piece; return no document yet."""
        self._pieces.append(piece)
        return []

    def end(self) -> bytes:
        """Return the document."""
        return b"".join(self._pieces)


def json_object(document: bytes) -> dict[str, Any] | None:
    """Return the JSON object in `document`; None if it is none."""
    try:
        found: object = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def tool_result(tool: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return what the tool has returned, from the result of `tools/call`.

    Raises:
        OublietteError: the tool failed; of the class of its code.
        AttemptFailed: a part of the server does not answer.
    """
    if not result.get("isError"):
        found = result.get("structuredContent")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else result
    meta = result.get("_meta")
    error = cast("dict[str, Any]", meta).get(ERROR_KEY) if isinstance(meta, dict) else None
    if not isinstance(error, dict):
        raise from_wire({"message": _text(result) or f"{tool} failed"})
    raised = from_wire(cast("dict[str, Any]", error))
    if raised.code == Unavailable.code:
        raise AttemptFailed(raised, "unavailable")
    if raised.code == StorageUnavailable.code:
        raise AttemptFailed(raised, "unstored")
    raise raised


def rpc_error(error: object) -> OublietteError:
    """Return the error that a JSON-RPC error describes."""
    return from_wire(_described(error))


def refusal(url: httpx2.URL, response: httpx2.Response, body: bytes) -> Exception:
    """Return the error for an HTTP status other than 200."""
    status = response.status_code
    message = json_object(body) or {}
    error = _described(message["error"]) if "error" in message else None
    reason = str(error["message"]) if error is not None else f"HTTP {status}"
    if status == HTTPStatus.UNAUTHORIZED:
        return Unauthenticated(
            f"{url}: {reason.partition(' (hint:')[0]}",
            hint="oubliette token create, on the machine of the server, makes a key; give it in"
            " OUBLIETTE_KEY or OUBLIETTE_KEY_FILE",
        )
    if status == HTTPStatus.FORBIDDEN:
        return Forbidden(f"{url}: {reason}")
    pause = _pause(response)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        limited = RateLimited(f"{url}: {reason}", retry_after=max(1, pause))
        return AttemptFailed(limited, "refused", pause=limited.retry_after)
    if status in _AWAY:
        away = Unavailable(f"{url}: {reason}{by_proxy(url)}", hint="try again in a moment")
        return AttemptFailed(away, "lost", pause=pause)
    if error is not None:
        return from_wire(error)
    if response.is_redirect:
        return strange(url, f"it points to {response.headers.get('location', 'nowhere')}")
    return strange(url, f"it answers HTTP {status}")


def strange(url: httpx2.URL, why: str) -> Unavailable:
    """Return the error for a server that is none of ours."""
    return Unavailable(
        f"{url} is no Oubliette server: {why}{by_proxy(url)}",
        hint=f"the address of a server ends in {PATH}",
    )


def away(url: httpx2.URL, why: str) -> Unavailable:
    """Return the error for a server that is not reachable."""
    return Unavailable(
        f"{url}: {why}{by_proxy(url)}",
        hint="is a server running there? `oubliette serve` starts one and prints its address",
    )


def _pause(response: httpx2.Response) -> int:
    found = response.headers.get("retry-after", "")
    return min(int(found), _LONGEST_PAUSE) if found.isdecimal() and len(found) < 10 else 0


def _described(error: object) -> dict[str, Any]:
    found = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code = found.get("code")
    message = str(found.get("message") or "the server gives no reason")
    known = _CODES.get(code, "error") if isinstance(code, int) else "error"
    if message.startswith(_UNKNOWN_TOOL):  # which MCP counts among invalid parameters
        known = "not_found"
    return {"code": known, "message": message}


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
