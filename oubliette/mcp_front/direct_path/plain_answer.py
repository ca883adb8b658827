"""Encoding of the answer to a plain call, in the form that the SDK would give it.

A tool's result is encoded once: its bytes are the structured content, and the same bytes as a JSON
string are the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from oubliette.mcp_front.events.event_format import encode
from oubliette.mcp_front.protocol import SERVER_INFO
from oubliette.mcp_front.transport.error_responses import tool_result
from oubliette.version import __version__

if TYPE_CHECKING:
    from oubliette.tools.schema.tool_result import ToolResult

SERVER: Final = "oubliette"
STAMP: Final = {SERVER_INFO: {"name": SERVER, "version": __version__}}


class _Text(msgspec.Struct):
    text: str
    type: Literal["text"] = "text"


class _Result(msgspec.Struct):
    content: tuple[_Text]
    is_error: bool = msgspec.field(name="isError", default=False)
    structured: Raw | UnsetType = msgspec.field(name="structuredContent", default=UNSET)
    kind: str | UnsetType = msgspec.field(name="resultType", default=UNSET)
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class _Response(msgspec.Struct):
    id: int | str
    result: _Result
    jsonrpc: Literal["2.0"] = "2.0"


_encode = msgspec.json.Encoder().encode
_STAMP: Final = Raw(_encode(STAMP))


def answered(request_id: int | str, answer: ToolResult, *, modern: bool) -> bytes:
    if answer.raw is None:
        result = tool_result(answer.structured, answer.text, is_error=answer.is_error)
        return with_result(request_id, result, modern=modern)
    result = _Result(content=(_Text(answer.text),), structured=Raw(answer.raw))
    if modern:
        result.kind, result.meta = "complete", _STAMP
    return _encode(_Response(request_id, result))


def with_result(request_id: int | str, result: dict[str, Any], *, modern: bool) -> bytes:
    """The response with a tool result of `error_responses`."""
    if modern:
        result = {**result, "_meta": {**result.get("_meta", {}), **STAMP}}
    else:
        result = {name: value for name, value in result.items() if name != "resultType"}
    return encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def with_error(request_id: int | str | None, code: int, message: str) -> bytes:
    error = {"code": code, "message": message}
    return encode({"jsonrpc": "2.0", "id": request_id, "error": error})
