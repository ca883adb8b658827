"""Identifiers: opaque, sortable by time, and checked where they enter.

An id is a prefix and 26 characters of Crockford's base 32: 48 bits of milliseconds, 80 bits of
randomness. Two ids of one process never collide and sort by creation. A server begins after the ids
that are stored (`begin_after`), so that they do so even if its clock was ahead before.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from typing import Final

from oubliette.errors import InvalidParameter

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_BODY: Final = "[0-9a-hjkmnp-tv-z]{26}"

PROJECT: Final = "proj"
SESSION: Final = "gogol"
CONTAINER: Final = "cont"
EXPLORATION: Final = "expl"
TOKEN: Final = "tok"  # noqa: S105 - a prefix
PRINCIPAL: Final = "prin"
INSTANCE: Final = "inst"
PROCESS: Final = "proc"

_PATTERNS: Final = {
    prefix: re.compile(f"{prefix}_{_BODY}")
    for prefix in (PROJECT, SESSION, CONTAINER, EXPLORATION, TOKEN, PRINCIPAL, INSTANCE, PROCESS)
}
_CALLER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_RANDOM_BITS: Final = 80
_LATEST: Final = 1 << 47
"""Milliseconds, of the year 6429, after which no id is taken for one of ours."""

_lock = threading.Lock()
_last = 0


def new_id(prefix: str) -> str:
    """Return a new id with `prefix`; later ones sort after earlier ones of the same process."""
    global _last
    with _lock:
        random = int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")
        value = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | random
        if value <= _last:  # random all the same: other processes may have begun after this one
            value = ((_last >> _RANDOM_BITS) + 1 << _RANDOM_BITS) | random
        _last = value
    return _written(prefix, value)


def begin_after(*stored: str | None) -> None:
    """Have new ids of this process sort after these, even if the clock went back.

    What is not one of our ids is left out.
    """
    global _last
    for each in stored:
        prefix, _, body = (each or "").partition("_")
        if prefix not in _PATTERNS or not is_id(f"{prefix}_{body}", prefix):
            continue
        value = 0
        for digit in body:
            value = value << 5 | _ALPHABET.index(digit)
        if value >> _RANDOM_BITS < _LATEST:
            with _lock:
                _last = max(_last, value)


def _written(prefix: str, value: int) -> str:
    digits = [""] * 26
    for place in range(25, -1, -1):
        digits[place] = _ALPHABET[value & 31]
        value >>= 5
    return f"{prefix}_{''.join(digits)}"


def derived_id(prefix: str, *parts: str) -> str:
    """Return the id with `prefix` that these texts have; it does not sort by creation."""
    import hashlib  # the command line makes no such ids, and its import takes a while

    framed = b"".join(
        len(part := text.encode("utf-8", "surrogatepass")).to_bytes(8, "big") + part
        for text in parts
    )
    return _written(prefix, int.from_bytes(hashlib.sha256(framed).digest()[:16], "big"))


def new_uuid() -> str:
    """A random UUID (version 4, RFC 9562) for workspaces and requests."""
    return str(uuid.uuid4())


def is_id(value: str, prefix: str) -> bool:
    """Whether `value` has the form of an id with `prefix`."""
    return _PATTERNS[prefix].fullmatch(value) is not None


def check_id(value: str, prefix: str, field: str) -> str:
    """Return `value` if it is an id with `prefix`.

    Raises:
        InvalidParameter: it is not; the message names `field`.
    """
    if not is_id(value, prefix):
        raise InvalidParameter(
            f"{field}: {shown(value)} is not an id of the form {prefix}_ and 26 characters",
            field=field,
        )
    return value


def check_uuid(value: str, field: str) -> str:
    """Return `value` if it is a UUID in lower case.

    Raises:
        InvalidParameter: it is not; the message names `field`.
    """
    if _UUID.fullmatch(value) is None:
        raise InvalidParameter(f"{field}: {shown(value)} is not a UUID in lower case", field=field)
    return value


def check_caller_id(value: str, field: str = "caller_id") -> str:
    """Return `value` if it may name a caller.

    Raises:
        InvalidParameter: it has other characters, or begins with `oubliette`.
    """
    if _CALLER_ID.fullmatch(value) is None:
        raise InvalidParameter(
            f"{field}: {shown(value)} must be 1 to 64 of A-Z a-z 0-9 _ -", field=field
        )
    if value.lower().startswith("oubliette"):
        raise InvalidParameter(f"{field}: names that begin with 'oubliette' are ours", field=field)
    return value


def check_tool_name(value: str, field: str = "name") -> str:
    """Return `value` if it may name a caller's tool.

    Raises:
        InvalidParameter: it is empty, too long or has characters that agents' clients refuse.
    """
    if _TOOL_NAME.fullmatch(value) is None:
        raise InvalidParameter(
            f"{field}: {shown(value)} must be 1 to 128 of A-Z a-z 0-9 _ . -", field=field
        )
    return value


def shown(value: object, limit: int = 60) -> str:
    """Return `value` for use in an error: quoted, truncated to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
