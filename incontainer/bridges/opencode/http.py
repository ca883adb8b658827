"""HTTP client for a server on loopback: one request per connection, and a stream of events.

`http.client` blocks; the bridge waits for its server, the guest and signals at the same time.
"""

from __future__ import annotations

import binascii
import errno
import os
import socket

from ...io.event_loop import HANGUP, READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...io.event_loop import Loop, LoopTimer

USER = "opencode"  # the user name that belongs to the server's password
CHUNK = 256 * 1024  # bytes of one read
MAX_HEAD = 64 * 1024  # bytes of status line and headers
MAX_BODY = 12 << 20  # bytes of an answer: what one line to the guest can carry


class UpstreamError(Exception):
    """The server did not answer, or the answer cannot be parsed."""


class ResponseParser:
    """Incremental parser of an answer: status line, headers, body by length, chunks or end."""

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self._raw = b""
        self._head = True
        self._chunked = False
        self._left = -1  # bytes of the body, or of the chunk; -1: until the connection ends

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body that `data` contains.

        Raises:
            UpstreamError: The bytes are not an HTTP answer.

        """
        self._raw += data
        if self._head:
            end = self._raw.find(b"\r\n\r\n")
            if end < 0:
                if len(self._raw) > MAX_HEAD:
                    raise UpstreamError("headers without end")
                return b""
            self._read_head(self._raw[:end])
            self._raw = self._raw[end + 4 :]
        if self._chunked:
            return self._unchunk()
        body, self._raw = self._raw, b""
        if self._left >= 0:
            body = body[: self._left]
            self._left -= len(body)
            self.done = self._left == 0
        return body

    def ended(self) -> None:
        """Note the end of the connection.

        Raises:
            UpstreamError: The answer is incomplete.

        """
        if not self.done and (self._head or self._chunked or self._left > 0):
            raise UpstreamError("the connection ended in mid-answer")
        self.done = True

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise UpstreamError(f"no HTTP: {first[:100]!r}")
        self.status = int(words[1])
        self._head = False
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.strip().lower(), value.strip().lower()
            if name == "transfer-encoding" and value.endswith("chunked"):
                self._chunked = True
            elif name == "content-length" and value.isdigit():
                self._left = int(value)
        if self._chunked:
            self._left = 0
        elif self.status in (204, 304) or self._left == 0:
            self.done = True

    def _unchunk(self) -> bytes:
        pieces: list[bytes] = []
        while not self.done:
            if self._left > 0:
                piece = self._raw[: self._left]
                if not piece:
                    break
                pieces.append(piece)
                self._raw = self._raw[len(piece) :]
                self._left -= len(piece)
                continue
            if self._raw.startswith(b"\r\n"):  # after the previous chunk
                self._raw = self._raw[2:]
            end = self._raw.find(b"\r\n")
            if end < 0:
                if len(self._raw) > MAX_HEAD:
                    raise UpstreamError("a chunk without size")
                break
            size = self._raw[:end].partition(b";")[0].strip()
            try:
                self._left = int(size, 16)
            except ValueError:
                raise UpstreamError(f"no size of a chunk: {size[:20]!r}") from None
            self._raw = self._raw[end + 2 :]
            self.done = self._left == 0
        return b"".join(pieces)


class ServerAddress:
    """Port of the server, and its password."""

    def __init__(self, port: int, password: str) -> None:
        self.port = port
        token = binascii.b2a_base64(f"{USER}:{password}".encode(), newline=False).decode()
        self._head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Basic {token}\r\n"

    def request(self, method: str, path: str, body: bytes | None, accept: str) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Accept: {accept}\r\nConnection: close\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode("latin-1") + b"\r\n" + (body or b"")


class HttpExchange:
    """One connection: writes its request, passes the body on, and reports how it ended.

    `seconds` is the longest time without data. While paused, time does not count.
    """

    def __init__(
        self,
        loop: Loop,
        address: ServerAddress,
        request: bytes,
        *,
        seconds: float,
        on_body: Callable[[int, bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._out = request
        self._on_body = on_body
        self._on_end = on_end
        self._response = ResponseParser()
        self._timer: LoopTimer | None = None
        self._paused = False
        self.closed = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()
        code = self._socket.connect_ex(("127.0.0.1", address.port))
        if code not in (0, errno.EINPROGRESS):
            loop.call_later(0, lambda: self._end(os.strerror(code)))
            return
        self._watch()

    @property
    def status(self) -> int:
        """The HTTP status; 0 before it is known."""
        return self._response.status

    def pause(self) -> None:
        """Read nothing more for now."""
        self._paused = True
        self._watch()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        self._watch()

    def close(self) -> None:
        """Close the connection, without a callback."""
        if not self.closed:
            self.closed = True
            self._rest()
            self._loop.unwatch(self._fd)
            self._socket.close()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        if self.closed:
            return
        self._rest()
        if not self._paused or self._out:
            self._timer = self._loop.call_later(self._seconds, self._overdue)
        mask = (WRITE if self._out else 0) | (0 if self._paused else READ)
        self._loop.watch(self._fd, mask, self._ready)

    def _overdue(self) -> None:
        self._end(f"nothing came for {self._seconds:g} s")

    def _ready(self, events: int) -> None:
        try:
            if self._out and events & (WRITE | HANGUP):
                self._out = self._out[self._socket.send(self._out[:CHUNK]) :]
            if not self._paused and events & (READ | HANGUP):
                self._read()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error.strerror or str(error))
        except UpstreamError as error:
            self._end(str(error))
        self._watch()

    def _read(self) -> None:
        data = self._socket.recv(CHUNK)
        if not data:
            self._response.ended()
            self._end("")
            return
        body = self._response.feed(data)
        if body:
            self._on_body(self._response.status, body)
        if self._response.done and not self.closed:
            self._end("")

    def _end(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._on_end(reason)


class EventReader:
    """Parser of server-sent events; of an overlong one only its size is reported."""

    def __init__(self, limit: int = MAX_BODY) -> None:
        self._limit = limit
        self._line = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | int]:
        """Return the data of the events that `data` completes, or the bytes of a long one."""
        found: list[bytes | int] = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._keep(line)
            whole, self._line = self._line.rstrip(b"\r"), b""
            if whole.startswith(b"data:") and self._size <= self._limit:
                self._data.append(whole[5:].lstrip(b" "))
            if not whole and self._size > self._limit:
                found.append(self._size)
            elif not whole and self._data:
                found.append(b"\n".join(self._data))
            if not whole:
                self._data, self._size = [], 0
        self._keep(rest)
        return found

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._limit:
            self._line += piece
        elif piece.strip():
            self._line = b"!"  # not empty, and no data
            self._data = []
