"""Requests to OpenCode's server as lines for the bridge, and what its answers mean."""

from __future__ import annotations

from typing import Any, Final, cast

from oubliette.runtime.agents.handshake_adapter import Json, line_of, object_of
from oubliette.runtime.agents.opencode.parts import error_text

_OK: Final = 200
_BAD: Final = 300


def request_line(
    name: str, method: str, path: str, body: Json | None = None, **for_the_bridge: str | bool
) -> bytes:
    """The line of a request, whose answer has the same name."""
    request: Json = {"id": name, "method": method, "path": path, **for_the_bridge}
    if body is not None:
        request["body"] = body
    return line_of(request)


def is_good(answer: Json) -> bool:
    status = answer.get("status")
    return isinstance(status, int) and _OK <= status < _BAD


def reason_of(answer: Json) -> str:
    if "error" in answer:
        return str(answer["error"])
    body = object_of(answer.get("body"))
    detail = body.get("text") or error_text(body) if body else ""
    return f"{detail or 'no reason was given'} (HTTP {answer.get('status')})"


def list_of(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
