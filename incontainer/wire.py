"""The relay protocol on the wire: headers, proofs, frames, JSON lines.

Floor 0: shared by the guest and the client inside a container and by the server outside, so it
does no I/O and imports only what is cheap (every agent waits for this start-up). Everything here
raises `WireError` with a reason that may be shown to the peer.
"""

from __future__ import annotations

import json
import re
import struct

TYPE_CHECKING = False  # `typing` itself costs 5 ms of a start of 20
if TYPE_CHECKING:
    from typing import Any, Union

    Header = Union["Upstream", "Downstream", "ControlHeader", "Attach", "Connect"]

PROTOCOL_MIN = 1
PROTOCOL_MAX = 2
TERMINALS_SINCE = 2  # version with the verbs `pty` and `resize`, and with `until_detached`
HANDSHAKE = 1  # version of the negotiation itself, so that it can never change

MAX_HEADER = 1024  # bytes, newline included
HEADER_TIMEOUT = 5.0  # seconds from accept to the header's newline
PROOF_TIMEOUT = 3.0  # seconds from the guest's challenge to the server's proof
TICKET_SECONDS = 30.0  # a one-time ticket is good for this long
KEY_BYTES = 32
NONCE_HEX = 32  # characters of a nonce, a challenge
MAX_CONTROL_LINE = 1 << 20  # bytes of one JSON line on the control link
MAX_SESSION_LINE = 16 << 20  # bytes of one JSON line on a session link
MAX_FRAME = 256 * 1024  # bytes of payload in one frame
MAX_STDIN_FRAME = MAX_SESSION_LINE  # a frame of input holds a whole message: all of it or nothing
MAX_WORD = 256  # characters of an id or a secret in a header
MAX_PORT = 65535
MAX_WINDOW = 4096  # rows, and columns, of a terminal
CONNECT_TIMEOUT = 5.0  # seconds for what listens on a port to accept
MAX_COUNT = (1 << 64) - 1  # offsets and sequence numbers are u64 on the wire

UPSTREAM = "OUBLIETTE-UPSTREAM"
DOWNSTREAM = "OUBLIETTE-DOWNSTREAM"
HOST = "OUBLIETTE-HOST"
ATTACH = "OUBLIETTE-ATTACH"
CONNECT = "OUBLIETTE-CONNECT"
CONNECTED = "OUBLIETTE-CONNECTED"
ERROR = "OUBLIETTE-ERROR"
UNKNOWN_PROCESS = "unknown process"  # only this refusal of an ATTACH is final

FRAME_HEAD = struct.Struct(">BQI")  # kind, n, length of the payload

STDOUT = 1  # n = offset of the first byte
STDERR = 2  # n = offset of the first byte
STDIN = 3  # n = sequence number, from 1
STDIN_OK = 4  # n = last sequence number accepted
EOF = 5  # guest to server: n = stream (1, 2); server to guest: n = sequence number
GAP = 6  # n = offset asked for, payload {"stream": 1, "next": offset}
EXIT = 7  # payload {"code": int|null, "signal": int|null}
RESIZE = 8  # client to server only: n = rows << 16 | columns
FRAME_KINDS = frozenset((STDOUT, STDERR, STDIN, STDIN_OK, EOF, GAP, EXIT, RESIZE))


class WireError(ValueError):
    """The peer sent something that the protocol does not allow; the text may be shown to it."""


class _Record:
    """Equality and a repr without the secret fields; a dataclass costs 10 ms of imports."""

    __slots__ = ()
    _hidden = frozenset(("ticket", "secret"))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__slots__))

    def __repr__(self) -> str:
        shown = (
            f"{name}={'***' if name in self._hidden else repr(getattr(self, name))}"
            for name in self.__slots__
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class Upstream(_Record):
    """The server's half of a pair."""

    __slots__ = ("depth", "project", "session", "ticket")

    def __init__(self, session: str, project: str, depth: int, ticket: str | None = None) -> None:
        self.session = session
        self.project = project
        self.depth = depth
        self.ticket = ticket

    def line(self) -> bytes:
        words = [UPSTREAM, self.session, self.project, str(self.depth)]
        return _line(words if self.ticket is None else [*words, self.ticket])


class Downstream(_Record):
    """The agent's half of a pair; `session` and `secret` are both there or both None."""

    __slots__ = ("project", "secret", "session")

    def __init__(self, project: str, session: str | None = None, secret: str | None = None) -> None:
        self.project = project
        self.session = session
        self.secret = secret

    def line(self) -> bytes:
        if self.session is None or self.secret is None:
            return _line([DOWNSTREAM, self.project])
        return _line([DOWNSTREAM, self.project, self.session, self.secret])


class ControlHeader(_Record):
    """The control link's opening."""

    __slots__ = ("nonce", "version")

    def __init__(self, nonce: str, version: int = HANDSHAKE) -> None:
        self.version = version
        self.nonce = nonce

    def line(self) -> bytes:
        return _line([HOST, str(self.version), self.nonce])


class Attach(_Record):
    """The opening of a process's streams, from byte offsets on."""

    __slots__ = ("err_offset", "out_offset", "proc", "ticket", "version")

    def __init__(
        self, proc: str, out_offset: int, err_offset: int, ticket: str, version: int = 1
    ) -> None:
        self.version = version
        self.proc = proc
        self.out_offset = out_offset
        self.err_offset = err_offset
        self.ticket = ticket

    def line(self) -> bytes:
        offsets = [str(self.out_offset), str(self.err_offset)]
        return _line([ATTACH, str(self.version), self.proc, *offsets, self.ticket])


class Connect(_Record):
    """The opening of a connection to a port on the loopback interface of the container."""

    __slots__ = ("port", "ticket", "version")

    def __init__(self, port: int, ticket: str, version: int = 1) -> None:
        self.version = version
        self.port = port
        self.ticket = ticket

    def line(self) -> bytes:
        return _line([CONNECT, str(self.version), str(self.port), self.ticket])


def _line(words: list[str]) -> bytes:
    for word in words:
        check_word(word, words[0])
    line = (" ".join(words) + "\n").encode()
    if len(line) > MAX_HEADER:
        raise WireError(f"header longer than {MAX_HEADER} bytes")
    return line


def check_word(word: str, what: str) -> str:
    """Return `word` if it can stand in a header: 1 to 256 printable characters, no blank."""
    if not word or len(word) > MAX_WORD or not word.isprintable() or " " in word:
        raise WireError(f"{what}: a word is empty, too long or not printable")
    return word


def check_hex(word: str, length: int, what: str) -> str:
    """Return `word` if it is `length` lower-case hexadecimal digits."""
    if len(word) != length or not set(word) <= set("0123456789abcdef"):
        raise WireError(f"{what} is not {length} hexadecimal digits")
    return word


def _count(word: str, what: str) -> int:
    # str.isdigit accepts other scripts' digits and int() accepts blanks, signs and underscores
    if not (word.isascii() and word.isdigit()) or len(word) > 20 or int(word) > MAX_COUNT:
        raise WireError(f"{what} is not a number")
    return int(word)


def parse_header(line: bytes) -> Header:
    """Read a header line (with or without its newline).

    Raises:
        WireError: The line is no header of this protocol.

    """
    if len(line) > MAX_HEADER:
        raise WireError(f"header longer than {MAX_HEADER} bytes")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise WireError("header is not UTF-8") from None
    if text.endswith("\n"):
        text = text[:-2] if text.endswith("\r\n") else text[:-1]
    kind, *words = text.split(" ")
    if kind not in (UPSTREAM, DOWNSTREAM, HOST, ATTACH, CONNECT):
        raise WireError("unknown header")
    for word in words:
        check_word(word, kind)
    if kind == UPSTREAM and len(words) in (3, 4):
        depth = _count(words[2], "depth")
        return Upstream(words[0], words[1], depth, words[3] if len(words) == 4 else None)
    if kind == DOWNSTREAM and len(words) in (1, 3):
        return Downstream(*words)
    if kind == HOST and len(words) == 2:
        nonce = check_hex(words[1], NONCE_HEX, "nonce")
        return ControlHeader(nonce, _version(words[0], HANDSHAKE, HANDSHAKE))
    if kind == ATTACH and len(words) == 5:
        version, proc, out, err, ticket = words
        offsets = (_count(out, "out_offset"), _count(err, "err_offset"))
        spoken = _version(version, PROTOCOL_MIN, PROTOCOL_MAX)
        return Attach(proc, offsets[0], offsets[1], ticket, spoken)
    if kind == CONNECT and len(words) == 3:
        return _connect(*words)
    raise WireError(f"{kind}: wrong number of words")


def _connect(version: str, port: str, ticket: str) -> Connect:
    number = _count(port, "port")
    if not 1 <= number <= MAX_PORT:
        raise WireError(f"port is not a number from 1 to {MAX_PORT}")
    return Connect(number, ticket, _version(version, PROTOCOL_MIN, PROTOCOL_MAX))


def _version(word: str, low: int, high: int) -> int:
    version = _count(word, "version")
    if not low <= version <= high:
        raise WireError(f"version {version} is not spoken here")
    return version


def connected_line() -> bytes:
    """The line that answers a `Connect` once the port has accepted."""
    return f"{CONNECTED}\n".encode()


def error_line(reason: str) -> bytes:
    """The line that answers a refused header."""
    return f"{ERROR} {' '.join(reason.split())}\n".encode()[:MAX_HEADER]


def parse_error(line: bytes) -> str | None:
    """Return the reason in an `OUBLIETTE-ERROR` line, or None if `line` is something else."""
    prefix = ERROR.encode() + b" "
    if not line.startswith(prefix):
        return None
    return line[len(prefix) :].decode(errors="replace").rstrip("\r\n")


# Proofs. Nonce and challenge enter as the hexadecimal text that crossed the wire. The two labels
# differ, so that neither side can be made to compute the other's answer.


def host_proof(key: bytes, nonce: str, challenge: str) -> str:
    return _hmac(key, b"oubliette-host|", nonce, challenge)


def server_proof(key: bytes, challenge: str, nonce: str) -> str:
    return _hmac(key, b"oubliette-server|", challenge, nonce)


def _hmac(key: bytes, label: bytes, first: str, second: str) -> str:
    import hmac

    message = label + first.encode() + b"|" + second.encode()
    return hmac.new(key, message, "sha256").hexdigest()


def same(given: object, expected: str) -> bool:
    """Compare two secrets in constant time; anything but a string is different."""
    import hmac

    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())


def digest(secret: str) -> str:
    """The SHA-256 of a pairing secret, as `expect` carries it."""
    import hashlib

    return hashlib.sha256(secret.encode()).hexdigest()


# Frames


class Frame(_Record):
    """One frame of an attached stream."""

    __slots__ = ("kind", "n", "payload")

    def __init__(self, kind: int, n: int, payload: bytes = b"") -> None:
        self.kind = kind
        self.n = n
        self.payload = payload


def _most(kind: int, stdin: int = MAX_STDIN_FRAME) -> int:
    return stdin if kind == STDIN else MAX_FRAME


def encode_frame(kind: int, n: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame as bytes.

    Raises:
        WireError: The payload is longer than a frame of this kind may be.

    """
    if len(payload) > _most(kind):
        raise WireError(f"frame longer than {_most(kind)} bytes")
    return FRAME_HEAD.pack(kind, n, len(payload)) + payload


class FrameDecoder:
    """Decoder of received pieces, cut anywhere, into whole frames.

    A frame of input has at most `stdin` bytes.
    """

    def __init__(self, stdin: int = MAX_STDIN_FRAME) -> None:
        self._buffer = bytearray()
        self._stdin = stdin

    @property
    def pending(self) -> int:
        """Bytes received of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes.

        Raises:
            WireError: Unknown kind or oversize frame; nothing can be read after it.

        """
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        size = FRAME_HEAD.size
        while len(buffer) - start >= size:
            kind, n, length = FRAME_HEAD.unpack_from(buffer, start)
            if kind not in FRAME_KINDS:
                raise WireError(f"unknown frame kind {kind}")
            most = _most(kind, self._stdin)
            if length > most:
                raise WireError(f"frame longer than {most} bytes")
            end = start + size + length
            if len(buffer) < end:
                break
            frames.append(Frame(kind, n, bytes(buffer[start + size : end])))
            start = end
        if start:
            del buffer[:start]
        return frames


# JSON lines


ENDS = 4096  # bytes kept of both ends of a line that is too long

# A JSON object's own "id" can be distinguished from a nested one only at its beginning or end;
# every known peer writes it in one of these places.
_ID = rb'"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\]|\\.){0,256}")'
_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?' + _ID + rb"\s*,")
_LAST = re.compile(rb",\s*" + _ID + rb"\s*\}\s*\Z")


def _id(text: bytes) -> str | int | None:
    try:
        found: str | int = json.loads(text)
    except ValueError:  # such as 007, or bytes that are no text
        return None
    return found


class OversizeLine:
    """Placeholder for a line above the limit, with the request id if it could be found.

    `size` is its length in bytes, without newline.
    """

    __slots__ = ("limit", "request_id", "size")

    def __init__(self, size: int, limit: int, head: bytes, tail: bytes) -> None:
        self.size = size
        self.limit = limit
        found = _FIRST.match(head) or _LAST.search(tail)
        self.request_id = _id(found.group(1)) if found else None

    def __str__(self) -> str:
        return f"a line of {self.size} bytes; at most {self.limit} are read"


class LineReader:
    """Decoder of received pieces into lines; a line above `limit` bytes is dropped and reported.

    Both ends of such a line are kept, so that it can be answered.
    """

    def __init__(self, limit: int = MAX_SESSION_LINE) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._size = 0  # of the unfinished line, dropped bytes included
        self._head = b""
        self._tail = b""

    @property
    def pending(self) -> int:
        """Bytes received of a line that is not whole yet."""
        return self._size

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes | OversizeLine]:
        """The lines that `data` completes, without their newlines, in order."""
        lines: list[bytes | OversizeLine] = []
        *ended, rest = bytes(data).split(b"\n")
        for piece in ended:
            self._keep(piece)
            lines.append(self._take())
        self._keep(rest)
        return lines

    def end(self) -> bytes | OversizeLine | None:
        """Return the bytes after the last newline, at the end of the stream, or None."""
        return self._take() if self._size else None

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size <= self.limit:
            self._parts.append(piece)
            return
        if self._parts:
            kept = b"".join(self._parts)
            self._head, self._tail = kept[:ENDS], kept[-ENDS:]
            self._parts = []
        if len(self._head) < ENDS:
            self._head = (self._head + piece)[:ENDS]
        self._tail = (self._tail + piece)[-ENDS:]

    def _take(self) -> bytes | OversizeLine:
        size, parts, head, tail = self._size, self._parts, self._head, self._tail
        self._size, self._parts, self._head, self._tail = 0, [], b"", b""
        if size <= self.limit:
            return b"".join(parts)
        return OversizeLine(size, self.limit, head, tail)


def encode_json(value: object) -> bytes:
    """Return `value` as one line of JSON, newline included."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # a lone surrogate has no UTF-8; as an escape it is preserved
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode_json(line: bytes) -> dict[str, Any]:
    """The JSON object in one line.

    Raises:
        WireError: Not UTF-8, not JSON, or not an object.

    """
    try:
        value: dict[str, Any] = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise WireError("line is not JSON") from None
    if type(value) is not dict:
        raise WireError("line is not a JSON object")
    return value
