"""Validation of tools' arguments: checked as a whole, decoded, refused with a clear message.

Every refusal names the field and the valid values. Accepted values can be stored, sent and
displayed: valid Unicode, finite numbers of 64 bits, bounded nesting.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

import msgspec

from oubliette import ids
from oubliette.errors import InvalidParameter
from oubliette.tool_params import field_types, json_schema

S = TypeVar("S", bound=msgspec.Struct)

MAX_DEPTH: Final = 64  # levels of objects and arrays
MAX_VALUES: Final = 1_000_000  # values in all
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


def check_values(arguments: dict[Any, Any], name: str = "arguments") -> None:
    """Refuse values that could not be stored or sent, at any depth of `arguments`.

    Raises:
        InvalidParameter: names the parameter with the value.
    """
    count = 0
    for key, top in arguments.items():
        field = key if isinstance(key, str) else name
        level = [{key: top}]
        depth = 0
        while level:
            depth += 1
            if depth > MAX_DEPTH + 1:
                raise InvalidParameter(
                    f"{ids.shown(field)}: nested deeper than {MAX_DEPTH} levels", field=field
                )
            below: list[Any] = []
            for node in level:
                if isinstance(node, dict):
                    pairs = cast("dict[Any, Any]", node)
                    count += len(pairs)
                    for inner in pairs:
                        _check_scalar(inner, field)
                    items: Any = pairs.values()
                else:
                    items = node
                    count += len(items)
                for item in items:
                    if isinstance(item, dict | list | tuple):
                        below.append(item)
                    else:
                        _check_scalar(item, field)
            if count > MAX_VALUES:
                raise InvalidParameter(
                    f"{ids.shown(field)}: more than {MAX_VALUES} values", field=field
                )
            level = below


def _check_scalar(value: object, field: str) -> None:
    if isinstance(value, str):
        if value.isascii():
            return
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidParameter(
                f"{field.encode('ascii', 'replace').decode()}: is not valid Unicode"
                " (half of a surrogate pair)",
                field=field,
            ) from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidParameter(f"{field}: JSON has no NaN or Infinity", field=field)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise InvalidParameter(f"{field}: an integer of more than 64 bits", field=field)


@cache
def checked_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `kind` with a check of `field_types.CHECKS`, and that check."""
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
        return _refusal(where, f"must match {found[1]}")
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
