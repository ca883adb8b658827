"""Every message between actors has fields that encode, so that it could leave its process."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import inspect as schema

import oubliette
from oubliette.kit.messages import LocalMessage, Message, reply_type, round_trip

if TYPE_CHECKING:
    from collections.abc import Iterator

ENCODED = (Path,)
"""Types that msgspec does not know and the kit encodes."""


def message_classes() -> list[type[Message]]:
    for module in pkgutil.walk_packages(oubliette.__path__, "oubliette."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[Message]] = []
    classes: list[type[Message]] = [Message]
    for each in classes:
        classes.extend(each.__subclasses__())
        if each.__module__.startswith("oubliette.") and not issubclass(each, LocalMessage):
            found.append(each)
    return found


def unencodable(type_: Any, seen: set[Any]) -> Iterator[str]:
    if isinstance(type_, schema.CustomType):
        if not issubclass(type_.cls, ENCODED):
            yield type_.cls.__name__
        return
    if isinstance(type_, schema.StructType | schema.DataclassType):
        if type_.cls not in seen:
            seen.add(type_.cls)
            for field in type_.fields:
                yield from (f"{field.name}: {name}" for name in unencodable(field.type, seen))
        return
    for attribute in ("types", "item_types"):
        for each in getattr(type_, attribute, ()):
            yield from unencodable(each, seen)
    for attribute in ("item_type", "key_type", "value_type", "type"):
        if (each := getattr(type_, attribute, None)) is not None:
            yield from unencodable(each, seen)


def test_every_message_and_its_declared_reply_can_be_encoded() -> None:
    found: dict[str, list[str]] = {}
    classes = message_classes()
    assert len(classes) > 100
    for each in classes:
        kinds = [each, reply_type(each)]
        wrong = [name for kind in kinds for name in unencodable(schema.type_info(kind), set())]
        if wrong:
            found[each.__qualname__] = wrong
    assert found == {}


class Moved(Message):
    folder: Path
    others: tuple[Path, ...] = ()


class Handle(Message):
    thing: object


def test_a_path_in_a_message_arrives_as_a_path() -> None:
    message = Moved(folder=Path("/a"), others=(Path("b/c"),))
    assert round_trip(message) == message


def test_what_cannot_be_encoded_is_named() -> None:
    with pytest.raises(TypeError, match="object"):
        round_trip(Handle(thing=object()))


def test_an_open_type_is_seen() -> None:
    class Odd:
        pass

    kind = msgspec.defstruct("Wrapped", [("odd", list[Odd])])
    assert list(unencodable(schema.type_info(kind), set())) == ["odd: Odd"]
