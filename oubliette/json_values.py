"""The check of JSON values that come from outside: the only one, used wherever some enter.

Clients, agents, guests, callers and MCP servers send them. What passes can be stored, read again
and sent to everybody: as JSON by msgspec, Python and the MCP SDK, whose parser takes 200 levels,
and as msgpack, which has integers of 64 bits. What does not pass never becomes an event.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette import ids
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_DEPTH: Final = 64  # levels of objects and arrays in the value of a field
MAX_VALUES: Final = 250_000  # values in all; to check as many holds the loop for 0.2 s
MAX_CHARACTERS: Final = 16 * 1024 * 1024  # of all texts and names together
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1
ENVELOPE: Final = 16  # levels that an agent's protocol, or an event of ours, has around values
UNKNOWN_SIZE: Final = 64 * 1024
"""Taken as the bytes of a value that cannot be encoded."""
_MAX_DIGITS: Final = len(str(MIN_INTEGER))  # Python reads none of more than 4300
_MANY: Final = f"more than {MAX_VALUES} values"
_MAX_SHOWN: Final = 200  # characters of a path in a refusal
_ODD = re.compile(r"[^\w.\[\]-]", re.ASCII)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Unfit(Exception):
    """A value that may not enter; `path` leads to it, from the inside."""

    def __init__(self, reason: str, *, whole: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.whole = whole
        """Whether the reason is about the whole field."""
        self.path: list[object] = []


class _Room:
    """Room that is left for the parts of a value."""

    __slots__ = ("characters", "shows_integers", "values")

    def __init__(self, *, shows_integers: bool) -> None:
        self.values = MAX_VALUES
        self.characters = MAX_CHARACTERS
        self.shows_integers = shows_integers


def check_count(data: bytes, name: str = "arguments") -> None:
    """Refuse a JSON document of too many values before any object is made of it.

    One of 16 MiB can have millions: to make objects of them takes a gigabyte, and seconds of the
    loop. Each value follows a comma or an opening bracket; an empty object or array counts twice.

    Args:
        data: The document.
        name: What it is called in the refusal.

    Raises:
        InvalidParameter: names the limit; its `field` is `name`.
    """
    if len(data) <= MAX_VALUES or _marks(data) <= MAX_VALUES:
        return
    # A long text may have as many: now texts are left out. With its name a value has two at most,
    # and more quotes than those are not split. NUL is in no JSON but that in UTF-16, which Python
    # and the SDK read too, and whose quotes are not found like this.
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"")
    readable = b"\0" not in data and bare.count(b'"') <= 4 * MAX_VALUES
    if not readable or _marks(b"".join(bare.split(b'"')[::2])) > MAX_VALUES:
        raise InvalidParameter(f"{ids.shown(name)}: {_MANY}", field=name)


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def check_values(
    fields: Mapping[Any, Any],
    name: str = "arguments",
    *,
    envelope: int = 0,
    shows_integers: bool = False,
) -> None:
    """Refuse values that could not be stored or sent, at any depth of `fields`, in one pass.

    Args:
        fields: An object; the value of each field may have `MAX_DEPTH` levels.
        name: What the object is called in the refusal of one of its own names.
        envelope: Levels that a protocol puts around the values.
        shows_integers: Whether an integer of more than 64 bits is replaced by its text, in place.

    Raises:
        InvalidParameter: names the value, by its path, and the limit.
    """
    try:
        _check(fields, MAX_DEPTH + envelope, _Room(shows_integers=shows_integers))
    except _Unfit as unfit:
        path = unfit.path[::-1] or [name]
        field = str(path[0])
        if unfit.whole:
            where = ids.shown(field)
        else:
            where = field + "".join(
                f".{step}" if isinstance(step, str) else f"[{step}]" for step in path[1:]
            )
            where = _ODD.sub("?", where[:_MAX_SHOWN])
        raise InvalidParameter(f"{where}: {unfit.reason}", field=_ODD.sub("?", field)) from None


def _check(node: Any, levels: int, room: _Room) -> None:
    if levels < 0:
        raise _Unfit(f"nested deeper than {MAX_DEPTH} levels", whole=True)
    room.values -= len(node)
    if room.values < 0:
        raise _Unfit(_MANY, whole=True)
    pairs: Iterable[tuple[object, Any]]
    if isinstance(node, dict):
        found = cast("dict[Any, Any]", node)
        _check_names(found, room)
        pairs = found.items()
    else:
        pairs = enumerate(cast("list[Any]", node))
    for place, item in pairs:
        try:
            _check_item(item, levels, room)
        except _Unfit as unfit:
            if room.shows_integers and isinstance(item, int):
                cast("dict[Any, Any]", node)[place] = str(item)
                continue
            unfit.path.append(place)
            raise


def _check_item(item: Any, levels: int, room: _Room) -> None:
    if isinstance(item, str):
        _check_text(item, room)
    elif isinstance(item, int):
        if not MIN_INTEGER <= item <= MAX_INTEGER:
            raise _Unfit("an integer of more than 64 bits")
    elif isinstance(item, dict | list | tuple):
        _check(item, levels - 1, room)
    elif isinstance(item, float):
        if not math.isfinite(item):
            raise _Unfit("JSON has no NaN or Infinity")
    elif item is not None:
        raise _Unfit(f"{type(item).__name__} is no type of JSON")


def _check_names(node: dict[Any, Any], room: _Room) -> None:
    try:
        names = "".join(node)
    except TypeError:
        raise _Unfit("has a name that is no text") from None
    _check_text(names, room)


def _check_text(text: str, room: _Room) -> None:
    room.characters -= len(text)
    if room.characters < 0:
        raise _Unfit(f"texts of more than {MAX_CHARACTERS} characters", whole=True)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Unfit("is not valid Unicode (half of a surrogate pair)") from None


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else MAX_INTEGER + 1


def parse(
    data: bytes, name: str = "arguments", *, integer: Callable[[str], object] = _integer
) -> Any:
    """The JSON value in a line, which is not checked yet except for `check_count`.

    Args:
        data: The line.
        name: What its values are called if they are too many.
        integer: Returns the value of these digits, which may be too many for Python.

    Raises:
        InvalidParameter: it is not JSON, or (with a `field`) has too many values.
    """
    check_count(data, name)
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Takes what only the check refuses, by its place: halves of surrogate pairs, 1e400, NaN.
        return json.loads(data.decode(), parse_int=integer)
    except (ValueError, RecursionError):
        raise InvalidParameter("the line is not JSON") from None


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in a line, whose values are checked.

    Raises:
        InvalidParameter: it is not JSON, no object, or has a value that may not enter.
    """
    found = parse(data)
    if not isinstance(found, dict):
        raise InvalidParameter("the line is not an object")
    fields = cast("dict[str, Any]", found)
    check_values(fields)
    return fields


def is_fit(fields: Mapping[Any, Any], envelope: int = 2 * ENVELOPE) -> bool:
    """Return whether `check_values` takes these fields; by default those of an event."""
    try:
        check_values(fields, envelope=envelope)
    except InvalidParameter:
        return False
    return True


def size(value: object) -> int:
    """The bytes of a value as JSON, at least roughly. Never raises."""
    try:
        return len(_encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return UNKNOWN_SIZE
