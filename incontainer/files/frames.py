"""Requests and answers of the files program: a head, one JSON object, then bytes of a file.

Names of files are strings in which bytes that are not UTF-8 are lone surrogates. JSON carries these
as escapes, and neither side's locale matters.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HEAD = struct.Struct(">II")  # bytes of the object, bytes after it
MAX_FIELDS = 4 << 20  # bytes of the object: a page of the longest names there are
MAX_DATA = 2 << 20  # bytes of a file in one request or answer


def name_string(name: bytes) -> str:
    """A name or path as a frame carries it."""
    return name.decode("utf-8", "surrogateescape")


def name_bytes(name: str) -> bytes:
    """The bytes of a name or path in a frame.

    Raises:
        UnicodeEncodeError: No bytes are written like this.

    """
    return name.encode("utf-8", "surrogateescape")


class BadFrame(ValueError):
    """The bytes are not a request or an answer of the files program."""


def encode(fields: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) > MAX_FIELDS or len(data) > MAX_DATA:
        raise BadFrame("a frame is too long")
    return HEAD.pack(len(text), len(data)) + text + data


class FileFrames:
    """Decoder of received pieces, cut anywhere, into whole requests or answers.

    `check` is called with each object before it is decoded, and may raise.
    """

    def __init__(self, check: Callable[[bytes], object] = bytes) -> None:
        self._buffer = bytearray()
        self._check = check

    @property
    def pending(self) -> int:
        """Bytes received of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, piece: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return what `piece` completes, in order.

        Raises:
            BadFrame: Too long, or not an object; nothing can be read after it.

        """
        self._buffer += piece
        whole: list[tuple[dict[str, Any], bytes]] = []
        while len(self._buffer) >= HEAD.size:
            fields, data = HEAD.unpack_from(self._buffer)
            if fields > MAX_FIELDS or data > MAX_DATA:
                raise BadFrame("a frame is too long")
            end = HEAD.size + fields + data
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[HEAD.size : end])
            del self._buffer[:end]
            self._check(body[:fields])
            whole.append((_object(body[:fields]), body[fields:]))
        return whole


def _object(text: bytes) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        raise BadFrame("a frame is not JSON") from None
    if type(value) is not dict:
        raise BadFrame("a frame is not an object")
    return value
