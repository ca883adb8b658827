"""Errors on the wire: JSON-RPC bodies over HTTP, and `isError` results of tools."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from oubliette.errors import InvalidParameter, OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Send

INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000

ERROR_KEY: Final = "dev.oubliette/error"
"""Key in `_meta` of an error, with code, message, hint and field."""

log = structlog.get_logger("oubliette.front")


async def refuse(
    send: Send,
    status: int,
    message: str,
    *,
    code: int = SERVER_ERROR,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Answer an HTTP request with a JSON-RPC error that belongs to no request id."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    await answer_json(send, status, error, headers=headers)


async def answer_json(
    send: Send, status: int, body: object, *, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer an HTTP request with a JSON document."""
    data = msgspec.json.encode(body)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(data)).encode()),
                (b"cache-control", b"no-store"),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": data, "more_body": False})


def tool_result(structured: dict[str, Any], text: str, *, is_error: bool) -> dict[str, Any]:
    """Return an MCP tool result; 2026-07-28 requires `resultType`, older clients ignore it.

    Details of an error go into `_meta`: clients check structured content against the tool's output
    schema, even of errors, and would show their own complaint instead of our message.
    """
    result: dict[str, Any] = {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "isError": is_error,
    }
    if is_error:
        result["_meta"] = {ERROR_KEY: structured.get("error", {})}
    elif structured:
        result["structuredContent"] = structured
    return result


def tool_failure(error: BaseException, tool: str) -> dict[str, Any]:
    """The `isError` result of an exception: its message if it is ours, else a reference.

    Internal details are logged under that reference; the client does not get them.
    """
    if isinstance(error, OublietteError):
        field = error.field if isinstance(error, InvalidParameter) else None
        return _failure(error.code, error.message, error.hint, field, str(error))
    reference = secrets.token_hex(4)
    log.error("tool failed", tool=tool, reference=reference, exc_info=error)
    text = f"internal error; the server's log has it under reference {reference}"
    return _failure("error", text, None, None, text)


def _failure(
    code: str, message: str, hint: str | None, field: str | None, text: str
) -> dict[str, Any]:
    content = {"code": code, "message": message, "hint": hint, "field": field}
    return tool_result({"error": content}, text, is_error=True)
