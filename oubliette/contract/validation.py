"""Validation of tools' arguments: checked as a whole, decoded, refused with a clear message.

Every refusal names the field and the valid values.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

import msgspec

from oubliette import ids
from oubliette.contract import field_types, json_schema
from oubliette.errors import InvalidParameter
from oubliette.json_values import check_values

S = TypeVar("S", bound=msgspec.Struct)

_KINDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}
_AT = re.compile(r" - at `(?P<path>(?:key in )?\$[^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|(\[[^\]]*\])")


def decode(kind: type[S], arguments: object, tool: str) -> S:
    """Decode `arguments` (None = none) to the parameters `kind` of `tool`.

    Raises:
        InvalidParameter: they are invalid; the message names the field and the remedy.
    """
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise InvalidParameter(
            f"arguments: must be an object with the parameters of {tool}", field="arguments"
        )
    check_values(cast("dict[Any, Any]", arguments))
    try:
        params = msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise _translated(str(error), kind, tool) from None
    _check_fields(params, "")
    return params


def _check_fields(params: msgspec.Struct, prefix: str) -> None:
    """Check the fields of `params` that have a check, and those of the Structs inside."""
    kind = type(params)
    for name, check in checked_fields(kind):
        value = getattr(params, name)
        if value is not None:
            check(value, prefix + name)
    for name in nesting_fields(kind):
        value = getattr(params, name)
        if isinstance(value, msgspec.Struct):
            _check_fields(value, f"{prefix}{name}.")
        elif isinstance(value, tuple):
            for place, item in enumerate(cast("tuple[Any, ...]", value)):
                if isinstance(item, msgspec.Struct):
                    _check_fields(item, f"{prefix}{name}[{place}].")


@cache
def checked_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    found: list[tuple[str, Any]] = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for meta in _metas(hint):
            check = (meta.extra or {}).get("check")
            if check is not None:
                found.append((name, field_types.CHECKS[check]))
    return tuple(found)


@cache
def nesting_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of `kind` that are Structs, or tuples that may have Structs in them."""
    hints = get_type_hints(kind)
    return tuple(name for name, hint in hints.items() if _nests(hint))


def _nests(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return True
    return any(_nests(part) for part in get_args(hint))


def _metas(hint: Any) -> list[msgspec.Meta]:
    own = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, msgspec.Meta)]
    inner = [hint.__origin__] if own else get_args(hint)
    return own + [meta for part in inner for meta in _metas(part)]


@cache
def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the input schema of `kind`; read-only."""
    return json_schema.object_schema(kind)


def _translated(text: str, kind: type[msgspec.Struct], tool: str) -> InvalidParameter:
    path: list[str] = []
    if at := _AT.search(text):
        text = text[: at.start()]
        path = [name or index for name, index in _STEP.findall(at["path"])]
    here = json_schema.at_path(schema_of(kind), path)
    where = _joined(path)
    inside = where or tool
    if found := re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL):
        name = found[1]
        wanted = _wanted(json_schema.at_path(here, [name]))
        return _refusal(_joined([*path, name]), f"is required; give {wanted}")
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        known = ", ".join(json_schema.object_part(here).get("properties", {})) or "no parameters"
        name = ids.shown(found[1])
        return InvalidParameter(
            f"{name}: unknown parameter; {inside} takes: {known}", field=found[1][:200] or name
        )
    if found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text, re.DOTALL):
        if found[2] == "null":
            remedy = f"leave it out or give {_wanted(here)}" if path else f"give {_wanted(here)}"
            return _refusal(where, f"must not be null; {remedy}")
        got = _KINDS.get(found[2], found[2])
        return _refusal(where, f"must be {_wanted(here)}, not {got}")
    if found := re.fullmatch(r"Expected `(\w+)` of length (<=|>=) (\d+)", text):
        size = int(found[3])
        parts = "characters" if found[1] == "str" else "entries"
        if found[2] == "<=":
            return _refusal(where, f"is longer than {size} {parts}; make it shorter")
        return _refusal(
            where, "must not be empty" if size == 1 else f"must have at least {size} {parts}"
        )
    if found := re.fullmatch(r"Expected `\w+` (<=|>=|<|>) (\S+)", text):
        words = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
        return _refusal(where, f"must be {words[found[1]]} {found[2]}")
    if found := re.fullmatch(r"Expected `\w+` matching regex '(.*)'", text, re.DOTALL):
        return _refusal(where, f"must be {field_types.FORMS[found[1]]}")
    if "enum value" in text:
        return _refusal(where, f"must be {_wanted(here)}")
    return _refusal(where, text)


def _wanted(part: dict[str, Any]) -> str:
    if "enum" in part:
        return "one of: " + ", ".join(str(value) for value in part["enum"] if value is not None)
    names = {
        "string": "str",
        "integer": "int",
        "number": "float",
        "boolean": "bool",
    }
    kind = part.get("type")
    if isinstance(kind, str):
        return _KINDS.get(names.get(kind, kind), kind)
    if "anyOf" in part:
        return " or ".join(_wanted(each) for each in part["anyOf"])
    return "a value"


def _joined(path: list[str]) -> str:
    return "".join(step if step.startswith("[") else f".{step}" for step in path).lstrip(".")


def _refusal(where: str, what: str) -> InvalidParameter:
    field = where or "arguments"
    return InvalidParameter(f"{field}: {what}", field=field)
