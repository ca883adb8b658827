"""Refusals of arguments in words that an agent can act on: the field, and what it must be."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from oubliette import ids
from oubliette.api.tools.foreign_types import ForeignRefusal

_AT: Final = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`$", re.DOTALL)
_WORDS: Final = {
    "array": "an array",
    "bool": "true or false",
    "bytes": "a string in base64",
    "date": "a date (RFC 3339)",
    "datetime": "a date and time (RFC 3339)",
    "decimal": "a decimal number",
    "duration": "a duration (ISO 8601)",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
    "time": "a time (RFC 3339)",
    "uuid": "a UUID",
}
_LIMITS: Final = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}


def in_words(error: Exception, schema: dict[str, Any]) -> str:
    """Return the sentence for an error of msgspec about arguments with this schema."""
    text = str(error)
    path = ""
    if at := _AT.search(text):
        text = text[: at.start()]
        path = at["path"].replace("[...]", ".*") + (".*" if at["key"] else "")
    cause = error.__cause__
    if isinstance(cause, ForeignRefusal):
        path += "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in cause.path)
        return f"{path.lstrip('.') or 'arguments'}: {cause.text}"
    where = path.lstrip(".")
    if found := re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL):
        return f"{where}.{found[1]}".lstrip(".") + ": is required"
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return f"{where}.{found[1]}".lstrip(".") + ": is unknown; leave it out"
    return f"{where or 'arguments'}: {_reason(text, path, schema)}"


def missing(names: list[str]) -> str:
    """Return the sentence for parameters that were not given."""
    return "; ".join(f"{name}: is required" for name in names)


def unknown(names: list[str], known: list[str]) -> str:
    """Return the sentence for arguments that no parameter has the name of."""
    given = ", ".join(ids.shown(name) for name in names[:5])
    there = ", ".join(known) or "none"
    return f"{given}: unknown; the parameters are: {there}"


def _reason(text: str, path: str, schema: dict[str, Any]) -> str:
    if found := re.fullmatch(r"Expected `(\w+)` of length (<=|>=) (\d+)", text):
        parts = "characters" if found[1] == "str" else "entries"
        return f"must have {_LIMITS[found[2]]} {found[3]} {parts}"
    if found := re.fullmatch(r"Expected `\w+` (<=|>=|<|>) (\S+)", text):
        return f"must be {_LIMITS[found[1]]} {found[2]}"
    if found := re.fullmatch(r"Expected `\w+` that's a multiple of (\S+)", text):
        return f"must be a multiple of {found[1]}"
    if found := re.fullmatch(r"Expected `str` matching regex (.*)", text, re.DOTALL):
        return f"must match the regular expression {found[1]}"
    if found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text, re.DOTALL):
        wanted = " or ".join(_WORDS.get(name, name) for name in found[1].split(" | "))
        return f"must be {wanted}, not {_WORDS.get(found[2], found[2])}"
    if found := re.fullmatch(r"Invalid enum value (.*)", text, re.DOTALL):
        values = _part(schema, path).get("enum", ())
        if values:
            return f"must be one of {', '.join(map(repr, values))}, not {found[1]}"
    return text[:1].lower() + text[1:]


def _part(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the part of a schema that describes the value at `path`; {} if it is not found."""
    root, here = schema, _resolved(schema, schema)
    for step in re.findall(r"\.([^.\[]+)|(\[\d+\])", path):
        name, index = step
        if index:
            inner: Any = here.get("items")
        else:
            inner = here.get("properties", {}).get(name, here.get("additionalProperties"))
        if not isinstance(inner, dict):
            return {}
        here = _resolved(cast("dict[str, Any]", inner), root)
    return here


def _resolved(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return `node` without its reference and, of `… | null`, the other alternative."""
    reference = str(node.get("$ref", "")).removeprefix("#/$defs/")
    node = cast("dict[str, Any]", root.get("$defs", {}).get(reference, node))
    kinds = [part for part in node.get("anyOf", ()) if part.get("type") != "null"]
    return _resolved(kinds[0], root) if len(kinds) == 1 else node
