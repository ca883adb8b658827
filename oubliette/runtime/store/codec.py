"""JSON encoding of the database's records and payloads, readable by `sqlite3` and migrations."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from oubliette import records
from oubliette.errors import InvalidParameter

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_payload_decoder = msgspec.json.Decoder()
_one_at_a_time = threading.Lock()


def encode(value: object) -> bytes:
    """Return `value` as JSON.

    Lone surrogates, which agents print and JSON cannot hold, become U+FFFD.

    Raises:
        InvalidParameter: the value has no JSON form.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_clean(msgspec.to_builtins(value)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidParameter(f"cannot be stored: {error}") from error


def decode(kind: type[T], data: bytes) -> T:
    return _decoder(kind).decode(data)


def decode_payload(data: bytes) -> Any:
    """The value in `data`, without a type."""
    return _payload_decoder.decode(data)


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    # msgspec 0.22 publishes its information about a struct to other threads before it is complete,
    # and decoding with that crashes the process. So structs are initialised one after the other;
    # the records at import, before threads start.
    with _one_at_a_time:
        return msgspec.json.Decoder(kind)


for _kind in vars(records).values():
    if isinstance(_kind, type) and issubclass(_kind, records.Record):
        _decoder(_kind)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_clean(key): _clean(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in cast("list[Any]", value)]
    return value
