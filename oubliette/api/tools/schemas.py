"""JSON Schemas of tools' parameters (2020-12): of an object, self-contained, free of references.

Agents' clients and the services of models differ in which references they resolve. All accept a
schema without any, so definitions are put where they are used. Those that contain themselves stay
in `$defs`, and all of them do where a schema would become too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import msgspec.inspect

from oubliette.api.tools import docstrings, foreign_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REF: Final = "#/$defs/"
_MOST_COPIES: Final = 200  # of definitions in one schema
_ONE: Final = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"$defs", "dependentSchemas", "patternProperties", "properties"})
_DROPPED: Final = frozenset({"title", "discriminator"})
_TYPES: Final[dict[type, str]] = {str: "string", int: "integer"}


class _TooManyCopies(Exception):
    """A schema without references would be too long."""


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type of msgspec or Pydantic.

    Raises:
        Exception: the type is not supported; the message of msgspec or Pydantic is the reason.
    """
    parts: dict[str, Any] = {}
    (root,), own = msgspec.json.schema_components(
        (kind,), schema_hook=_hook(parts), ref_template=_REF + "{name}"
    )
    describe(own, kind)
    parts.update(own)
    circular = frozenset(name for name in parts if name in _reached(name, parts))
    try:
        return _assembled(root, parts, circular)
    except _TooManyCopies:
        top = str(root.get("$ref", "")).removeprefix(_REF)
        return _assembled(root, parts, frozenset(parts) - {top} | circular)


def _hook(parts: dict[str, Any]) -> Callable[[type], dict[str, Any]]:
    """Return msgspec's hook for types of Pydantic, whose definitions it adds to `parts`."""
    count = 0

    def hook(kind: type) -> dict[str, Any]:
        nonlocal count
        count += 1
        schema = foreign_types.schema_of(kind, f"{_REF}{{model}}.{count}")
        for name, part in schema.pop("$defs", {}).items():
            parts[f"{name}.{count}"] = part
        return schema

    return hook


def _assembled(root: dict[str, Any], parts: dict[str, Any], kept: frozenset[str]) -> dict[str, Any]:
    inliner = _Inliner(parts, kept)
    name = str(root.get("$ref", "")).removeprefix(_REF)
    # The root has to be an object that all can read, also if it is part of itself.
    schema = inliner.schema(parts[name] if name in kept else root)
    needed: dict[str, Any] = {}
    while missing := inliner.used - needed.keys():
        for each in sorted(missing):
            needed[each] = inliner.schema(parts[each])
    if needed:
        schema["$defs"] = needed
    return msgspec.json.decode(msgspec.json.encode(schema))  # defaults may be tuples


class _Inliner:
    """Copies schemas with definitions in the place of references, but for those in `kept`."""

    def __init__(self, parts: dict[str, Any], kept: frozenset[str]) -> None:
        self._parts = parts
        self._kept = kept
        self._copies = 0
        self.used: set[str] = set()

    def schema(self, node: Any) -> Any:
        """Return a copy of a schema; `True` and `False` are schemas too."""
        if not isinstance(node, dict):
            return node
        here = dict(cast("dict[str, Any]", node))
        name = str(here.get("$ref", "")).removeprefix(_REF)
        if name in self._kept:
            self.used.add(name)
        elif name in self._parts:
            self._copies += 1
            if self._copies > _MOST_COPIES:
                raise _TooManyCopies
            del here["$ref"]
            here = {**self._parts[name], **here}
        values = cast("list[object]", here.get("enum", []))
        for kind, name in _TYPES.items():
            if values and all(type(value) is kind for value in values):
                here.setdefault("type", name)
        return {key: self._inner(key, value) for key, value in here.items() if key not in _DROPPED}

    def _inner(self, key: str, value: Any) -> Any:
        if key in _ONE:
            return self.schema(value)
        if key in _LISTS:
            return [self.schema(part) for part in value]
        if key in _MAPS:
            return {name: self.schema(part) for name, part in value.items()}
        return value


def _reached(start: str, parts: dict[str, Any]) -> set[str]:
    """Return the definitions that a definition refers to, also through others."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for name in _references(parts[ahead.pop()]):
            if name in parts and name not in seen:
                seen.add(name)
                ahead.append(name)
    return seen


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in cast("dict[str, Any]", node).items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(_REF)
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for part in cast("list[Any]", node):
            yield from _references(part)


_INNER: Final = ("type", "item_type", "key_type", "value_type")
_INNER_LISTS: Final = ("types", "item_types", "fields")


def describe(parts: dict[str, Any], kind: Any) -> None:
    """Add the descriptions of fields to the schemas `parts` of the classes that `kind` consists of.

    They are taken from the section `Attributes:` or `Args:` of a class's docstring, whose text
    outside of sections describes the class. A description in the type itself takes precedence.
    """
    found: dict[str, list[Any]] = {}
    for each in _described(msgspec.inspect.type_info(kind)):
        found.setdefault(each.cls.__name__, []).append(each)
    for part in parts.values():
        same = found.get(part.get("title", ""), [])
        if len(same) != 1:
            continue  # of two classes with one name, it is not known whose schema this is
        docs = docstrings.parsed(same[0].cls.__doc__)
        if "description" in part:
            part["description"] = docs.description
        for field in same[0].fields:
            text = docs.parameters.get(field.name)
            shown = part.get("properties", {}).get(field.encode_name)
            if text and shown is not None:
                shown.setdefault("description", text)


def _described(kind: Any) -> Iterator[Any]:
    """Return the classes with fields in a type of `msgspec.inspect`, each once."""
    seen: set[int] = set()
    ahead = [kind]
    while ahead:
        here = ahead.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if hasattr(here, "cls") and hasattr(here, "fields"):
            yield here
        ahead += [inner for name in _INNER if (inner := getattr(here, name, None)) is not None]
        for name in _INNER_LISTS:
            ahead += cast("tuple[Any, ...]", getattr(here, name, ()))
