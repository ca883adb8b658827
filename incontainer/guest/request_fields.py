"""Validation of a request's fields; an error names the field."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class VerbError(Exception):
    """A request cannot be carried out; code and message are its answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(name: str, what: str) -> VerbError:
    return VerbError("invalid", f"{name}: {what}")


def text(request: dict[str, Any], name: str) -> str:
    """A string valid in argv, an environment or a path: not empty, no NUL, UTF-8."""
    value: object = request.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(name, "a string is needed")
    return _clean(name, value)


def word(request: dict[str, Any], name: str) -> str:
    value = text(request, name)
    if len(value) > 256 or not value.isprintable() or " " in value:
        raise invalid(name, "1 to 256 printable characters without blanks are needed")
    return value


def _clean(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(name, "not valid UTF-8") from None
    if "\0" in value:
        raise invalid(name, "contains a NUL")
    return value


def strings(request: dict[str, Any], name: str) -> list[str]:
    """A list of strings, the first not empty."""
    value: list[Any] = request.get(name, ())
    if type(value) is not list or not value or not value[0]:
        raise invalid(name, "a list of strings is needed")
    for item in value:
        if not isinstance(item, str):
            raise invalid(name, "a list of strings is needed")
        _clean(name, item)
    return value


def table(request: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object; empty if missing."""
    value: dict[str, Any] | None = request.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise invalid(name, "an object is needed")
    return value


def mapping(request: dict[str, Any], name: str) -> dict[str, str]:
    """Return an object of strings valid as an environment; empty if missing."""
    value = table(request, name)
    for key, item in value.items():
        if not isinstance(item, str) or not key or "=" in key:
            raise invalid(f"{name}.{key}", "a string is needed")
        _clean(f"{name}.{key}", key)
        _clean(f"{name}.{key}", item)
    return value


def number(request: dict[str, Any], name: str, low: int, high: int) -> int:
    value: object = request.get(name)
    if type(value) is not int or not low <= value <= high:
        raise invalid(name, f"a whole number from {low} to {high} is needed")
    return value


def seconds(request: dict[str, Any], name: str) -> float | None:
    """Return a positive number of seconds, or None if missing."""
    value: Any = request.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= 1e9:
        raise invalid(name, "a positive number of seconds is needed")
    return float(value)


def flag(request: dict[str, Any], name: str, *, default: bool) -> bool:
    value: object = request.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(name, "true or false is needed")
    return value
