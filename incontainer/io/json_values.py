"""Type checks for parsed JSON."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_OBJECT: Any = dict
_ARRAY: Any = list


def as_object(value: Any) -> Json | None:
    """Return `value` if it is a JSON object, else None."""
    return value if isinstance(value, _OBJECT) else None


def as_array(value: Any) -> list[Any] | None:
    """Return `value` if it is a JSON array, else None."""
    return value if isinstance(value, _ARRAY) else None


def as_text(value: object, default: str = "") -> str:
    """Return `value` if it is a non-empty string, else `default`."""
    return value if isinstance(value, str) and value else default
