"""Parser of the JSON output of Apple's `container`, in both generations.

Up to 0.12 `status` is a word and dates are seconds since 2001; from 1.0 on `status` is an object
and dates are ISO 8601. Missing or malformed values are read as unknown: a listing must not fail
because of another program's container.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers.base import ImageInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

EPOCH_2001: Final = 978_307_200.0
"""2001-01-01T00:00:00Z, from which Apple's dates are counted."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One container as listed."""

    id: str
    state: str
    """`running`, `stopped`, `stopping` or `unknown`."""
    labels: dict[str, str]
    started_at: float | None = None
    """Wall-clock second; known while it runs."""


def containers(reply: bytes) -> list[Seen]:
    """Parse the output of `inspect` or `list --format json`.

    Raises:
        RuntimeFailure: the output is no JSON array.
    """
    found = (_seen(entry) for entry in _array(reply))
    return [each for each in found if each is not None]


def _array(reply: bytes) -> list[Any]:
    try:
        return msgspec.json.decode(reply, type=list[Any])
    except msgspec.MsgspecError as error:
        raise RuntimeFailure(f"apple: what container says cannot be read: {error}") from error


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _seen(entry: object) -> Seen | None:
    whole = _mapping(entry)
    made = _mapping(whole.get("configuration"))
    name = whole.get("id") or made.get("id")
    if not isinstance(name, str):
        return None
    status = whole.get("status")
    if isinstance(status, dict):
        now = _mapping(cast("object", status))
        state, started = now.get("state"), now.get("startedDate")
    else:
        state, started = status, whole.get("startedDate")
    labels = {
        key: value for key, value in _mapping(made.get("labels")).items() if isinstance(value, str)
    }
    return Seen(
        id=name,
        state=state if isinstance(state, str) else "unknown",
        labels=labels,
        started_at=seconds(started),
    )


def seconds(value: object) -> float | None:
    """A date of either generation as a wall-clock second."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return EPOCH_2001 + value
    if isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(value).timestamp()
    return None


def versions(text: bytes) -> list[str]:
    """The versions of the program and, if they run, of its services (`system version`)."""
    with contextlib.suppress(msgspec.MsgspecError):
        read = msgspec.json.decode(text)
        entries = cast("list[object]", read) if isinstance(read, list) else [read]
        found = [_mapping(entry).get("version") for entry in entries]
        return [version for version in found if isinstance(version, str)]
    return []


def image(reply: bytes) -> ImageInfo | None:
    """Return the first image of `image inspect`'s output, or None."""
    entries = _array(reply) if reply.strip() else []
    if not entries:
        return None
    whole = _mapping(entries[0])
    made = _mapping(whole.get("configuration")) or whole  # 0.x has no configuration
    index = _mapping(made.get("descriptor") or made.get("index"))
    listed = whole.get("variants")
    variants = (
        [_mapping(each) for each in cast("list[object]", listed)]
        if isinstance(listed, list)
        else []
    )
    sizes = [size for each in variants if isinstance(size := each.get("size"), int)]
    built = [seconds(_mapping(each.get("config")).get("created")) for each in variants]
    return ImageInfo(
        id=str(index.get("digest") or whole.get("id") or ""),
        size_bytes=sum(sizes) or None,
        built_at=next((each for each in built if each is not None), None),
    )


def service_state(reply: bytes) -> str:
    """Return `running`, `not running` or `unregistered`, from `system status --format json`."""
    with contextlib.suppress(msgspec.MsgspecError):
        return str(_mapping(msgspec.json.decode(reply)).get("status") or "unknown")
    return "unknown"
