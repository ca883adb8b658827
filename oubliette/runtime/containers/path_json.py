"""JSON of structs that hold paths: container specs in labels and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Make a decoder of `kind`, whose paths are strings in the JSON."""
    return msgspec.json.Decoder(kind, dec_hook=_decode)


def _encode(value: object) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _decode(kind: type, value: object) -> Any:
    if issubclass(kind, Path) and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{kind.__name__} has no form in JSON")


encoder = msgspec.json.Encoder(enc_hook=_encode)
"""Encoder of structs whose paths become strings."""
