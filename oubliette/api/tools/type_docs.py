"""Descriptions of the fields of types, from the docstrings of their classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec.inspect

from oubliette.api.tools import docstrings

if TYPE_CHECKING:
    from collections.abc import Iterator

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
