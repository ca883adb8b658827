"""ToolResult, the answer of a tool for every transport."""

from __future__ import annotations

from typing import Any

import msgspec

from oubliette.errors import AlreadyExists, InvalidParameter, OublietteError
from oubliette.runtime.store.codec import decode_payload


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a call, for every transport."""

    text: str
    """The result as JSON; of an error, its message."""
    raw: bytes | None = None
    """The result as JSON in UTF-8; None for an error."""
    error: dict[str, Any] | None = None
    """`{code, message, hint, field}` of an error."""

    @property
    def structured(self) -> dict[str, Any]:
        """The result as an object; for an error `{"error": …}`."""
        return {"error": self.error} if self.raw is None else decode_payload(self.raw)

    @property
    def is_error(self) -> bool:
        return self.raw is None

    @property
    def code(self) -> str | None:
        return None if self.error is None else self.error["code"]


def success(raw: bytes) -> ToolResult:
    return ToolResult(text=raw.decode(), raw=raw)


def failure(error: OublietteError) -> ToolResult:
    body = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "field": error.field if isinstance(error, InvalidParameter) else None,
    }
    if isinstance(error, AlreadyExists) and error.existing_id is not None:
        body["existing_id"] = error.existing_id
    return ToolResult(text=str(error), error=body)
