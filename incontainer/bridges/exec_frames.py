"""Framing of a bridge's standard streams: a hello, then both directions in pieces.

The bridge writes `OUBLIETTE-BRIDGE 1` first, or `OUBLIETTE-ERROR {reason}` and exits. Then each
direction is a sequence of pieces: a length of 4 bytes (big-endian) and that many bytes; a length of
0 ends the direction, as a half-close of the socket does. An engine's stream cannot end a single
direction of output, and over TLS not the input either.
"""

from __future__ import annotations

import struct

HELLO = b"OUBLIETTE-BRIDGE 1\n"

_LENGTH = struct.Struct(">I")


def head(size: int) -> bytes:
    """Return the head of a piece of `size` bytes; 0 is the end."""
    return _LENGTH.pack(size)


class Unpacker:
    """Decoder of the pieces in a stream, however it was cut."""

    def __init__(self) -> None:
        self.ended = False
        self._head = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the pieces in `data`; what follows the end is dropped."""
        view = memoryview(data)
        found: list[bytes | memoryview] = []
        while view and not self.ended:
            if self._left:
                part = view[: self._left]
                found.append(part)
                self._left -= len(part)
                view = view[len(part) :]
                continue
            missing = _LENGTH.size - len(self._head)
            self._head += bytes(view[:missing])
            view = view[missing:]
            if len(self._head) == _LENGTH.size:
                self._left = _LENGTH.unpack(self._head)[0]
                self._head = b""
                self.ended = self._left == 0
        return b"".join(found)
