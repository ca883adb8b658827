"""Labels of a container at an engine, and fields of its inspection.

A label holds the spec, so that a new server finds all of it again after a kill.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from oubliette.runtime.containers.base import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.containers.base import ContainerState

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


LABEL_MADE_OF: Final = "dev.oubliette.made-of"
"""The whole spec as JSON; not shown to others."""

LABEL_BRIDGED: Final = "dev.oubliette.bridged"
"""Present, and empty, on containers with bridged links (`docker.relay_transport`)."""

_STATES: Final[dict[str, ContainerState]] = {
    "created": "created",
    "configured": "created",
    "initialized": "created",
    "running": "running",
    "paused": "running",
    "restarting": "running",
    "stopping": "running",
    "removing": "exited",
    "exited": "exited",
    "stopped": "exited",
    "dead": "exited",
}


def name_of(container_id: str) -> str:
    return f"oubliette-{container_id}"


def state_of(now: Mapping[str, Any]) -> ContainerState:
    return _STATES.get(str(now.get("Status")), "unknown")


def seconds(text: object) -> float | None:
    """Parse a time as engines write it; None for none."""
    with contextlib.suppress(ValueError, OverflowError):
        when = datetime.fromisoformat(str(text)).timestamp()
        return when if when > 0 else None
    return None


def write_spec(spec: ContainerSpec) -> str:
    return encoder.encode(spec).decode()


def read_spec(labels: Mapping[str, str]) -> ContainerSpec:
    """Parse the value written by `write_spec`.

    Raises:
        msgspec.MsgspecError: another release wrote another format.
    """
    return _decoder.decode(labels.get(LABEL_MADE_OF, "").encode())


_decoder = decoder(ContainerSpec)
