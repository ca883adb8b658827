"""Records and payloads as JSON in the database: `sqlite3` shows them, migrations can reach in."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from oubliette.errors import InvalidParameter

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_payload_decoder = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """`value` as JSON.

    Lone surrogates, which agents print and JSON cannot hold, become U+FFFD.

    Raises:
        InvalidParameter: it is nothing that JSON can say.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_clean(msgspec.to_builtins(value)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidParameter(f"cannot be stored: {error}") from error


def decode(kind: type[T], data: bytes) -> T:
    """The record of type `kind` in `data`."""
    return _decoder(kind).decode(data)


def decode_payload(data: bytes) -> Any:
    """What is in `data`, without a type."""
    return _payload_decoder.decode(data)


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_clean(key): _clean(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in cast("list[Any]", value)]
    return value
