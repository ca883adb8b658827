"""Decoding of events: every JSON object becomes an event, and none an error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.contract.events import CLASSES, Event, LargeEvent, SystemEvent, UnknownEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD: Final = frozenset(Event.__struct_fields__)


def decode_event(data: Mapping[str, Any]) -> Event:
    """Return the event that a JSON object of `session_events` or `caller_listen` describes.

    It never fails: an object that is not as docs/events.md describes it is an `UnknownEvent`.
    """
    whole = dict(data)
    named = whole.get("type")
    size = whole.get("size")
    if isinstance(whole.get("ref"), dict) and type(size) is int and isinstance(named, str):
        return LargeEvent(**_head(whole), size=size, data=_rest(whole, "ref", "size"))
    if named == "system":
        kind = whole.get("kind")
        named_kind = kind if isinstance(kind, str) else None
        left = _rest(whole, "kind") if named_kind is not None else _rest(whole)
        return SystemEvent(**_head(whole), kind=named_kind, data=left)
    known = CLASSES.get(named) if isinstance(named, str) else None
    if known is None:
        return UnknownEvent(**_head(whole), data=whole)
    try:
        return msgspec.convert(whole, known)
    except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        return UnknownEvent(**_head(whole), data=whole, problem=str(error) or repr(error))


def encode_event(event: Event) -> dict[str, Any]:
    """Return the JSON object that describes an event; fields that it does not have are left out."""
    if isinstance(event, UnknownEvent):
        return event.data
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(event))
    if isinstance(event, SystemEvent | LargeEvent):
        fields |= fields.pop("data")
    absent = [name for name in ("turn", "redelivered") if not fields[name]]
    return {name: value for name, value in fields.items() if name not in absent}


def _head(data: dict[str, Any]) -> dict[str, Any]:
    """Return the common fields; one of the wrong type has its default."""
    found: dict[str, Any] = {"type": ""}
    for name, kinds in (("type", str), ("session_id", str), ("redelivered", bool)):
        if isinstance(value := data.get(name), kinds):
            found[name] = value
    for name in ("index", "seq", "version", "turn"):
        if type(value := data.get(name)) is int:
            found[name] = value
    found["ts"] = _seconds(data.get("ts"))
    return found


def _seconds(value: object) -> float:
    if type(value) not in {int, float}:
        return 0.0
    try:
        seconds = float(cast("float", value))
    except OverflowError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _rest(data: dict[str, Any], *without: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in _HEAD | {*without}}
