"""Pydantic's types among the annotations of tools: checked, described and dumped by Pydantic.

Pydantic is never imported here: unless the program has imported it, no type can be one of its own.
A parameter with such a type anywhere in its annotation is handed to Pydantic as a whole, behind a
class that msgspec does not know (`ForeignValue`); msgspec then calls the hooks below. A model that
is a field of a dataclass or Struct is met by the hooks directly.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, ClassVar, Final, cast, get_args

_OWN: Final = frozenset({"annotated_types", "pydantic", "pydantic_core"})


class ForeignRefusal(ValueError):
    """Pydantic has refused a value: `path` leads to the part that is wrong, `text` is why."""

    def __init__(self, path: tuple[str | int, ...], text: str) -> None:
        super().__init__(text)
        self.path = path
        self.text = text


class ForeignValue:
    """Base of the classes that stand for one annotation that is Pydantic's."""

    adapter: ClassVar[Any]
    """Its `pydantic.TypeAdapter`."""

    def __init__(self, value: object) -> None:
        self.value = value


def is_foreign(hint: Any) -> bool:
    """Whether a part of an annotation is a type or a constraint of Pydantic."""
    if "pydantic" not in sys.modules:
        return False
    if _is_model(hint):
        return True
    metadata = getattr(hint, "__metadata__", ())
    if any(type(part).__module__.partition(".")[0] in _OWN for part in metadata):
        return True
    return any(is_foreign(part) for part in get_args(hint))


def standing_for(hint: Any) -> type[ForeignValue]:
    """Return a class of its own that stands for the annotation `hint`.

    Raises:
        Exception: Pydantic cannot make a schema of it; its message is the reason.
    """
    from pydantic import TypeAdapter

    return type("ForeignParameter", (ForeignValue,), {"adapter": TypeAdapter(hint)})


def decode(kind: type[Any], value: Any) -> Any:
    """Make a `kind` of JSON values: the `dec_hook` of msgspec.

    Raises:
        ForeignRefusal: the value is invalid.
        NotImplementedError: the type is not Pydantic's.
    """
    held = issubclass(kind, ForeignValue)
    if not held and not _is_model(kind):
        raise NotImplementedError(f"type {kind.__name__} is not supported")
    from pydantic import ValidationError

    adapter: Any = kind.adapter if held else _adapter(kind)
    try:
        made = adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ForeignRefusal(tuple(first["loc"]), first["msg"]) from None
    return kind(made) if held else made


def schema_of(kind: type[Any], ref_template: str) -> dict[str, Any]:
    """Return the JSON Schema of `kind`: the `schema_hook` of msgspec, with its `$defs` inside.

    Raises:
        NotImplementedError: the type is not Pydantic's.
    """
    held = issubclass(kind, ForeignValue)
    if not held and not _is_model(kind):
        raise NotImplementedError
    adapter: Any = kind.adapter if held else _adapter(kind)
    return adapter.json_schema(ref_template=ref_template, mode="validation")


def dumped(value: Any) -> Any:
    """Return a Pydantic object as plain values: the `enc_hook` of msgspec.

    Raises:
        NotImplementedError: the object is not Pydantic's.
    """
    kind = cast("Any", type(value))
    if not _is_model(kind):
        raise NotImplementedError(f"objects of type {kind.__name__} are no JSON")
    return _adapter(kind).dump_python(value, mode="json", by_alias=True)


def is_field(value: object) -> bool:
    """Whether `value` is what `pydantic.Field(…)` returns."""
    kind = type(value)
    return kind.__name__ == "FieldInfo" and kind.__module__.partition(".")[0] == "pydantic"


def _is_model(kind: Any) -> bool:
    """Whether `kind` is a model or a dataclass of Pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
