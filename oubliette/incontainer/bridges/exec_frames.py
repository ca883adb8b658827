"""What a bridge speaks on its standard streams: a hello, then both directions in pieces.

First the bridge says `OUBLIETTE-BRIDGE 1`, or `OUBLIETTE-ERROR {reason}` and leaves. Then each
direction is pieces: a length of 4 bytes (big-endian) and that many bytes; a length of 0 ends the
direction, as a half-close of the socket does. An engine's stream has no end of its own for one
direction of output, and over TLS none for input.
"""

from __future__ import annotations

import struct

HELLO = b"OUBLIETTE-BRIDGE 1\n"

_LENGTH = struct.Struct(">I")


def head(size: int) -> bytes:
    """What goes before a piece of `size` bytes; of 0, the end."""
    return _LENGTH.pack(size)


class Unpacker:
    """Takes pieces out of a stream, however it was cut."""

    def __init__(self) -> None:
        self.ended = False
        self._head = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """The bytes of the pieces in `data`; what follows the end is dropped."""
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
