"""HTTP connections parsed by httptools, which is written in C and costs a quarter of h11.

uvicorn's protocol of that name omits checks that h11 makes, and some omissions would let a client
use up the server's memory or smuggle a request past a proxy. So this class refuses heads without
end, several hosts, transfer encodings that it does not decode, and trailers among the headers.
Requests are answered one at a time; the next one stays unread, except for what came in the same
segment, which is dropped with the connection after the answer, as a client that pipelines must
expect (RFC 9112, 9.3.2).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Send
    from uvicorn.config import Config
    from uvicorn.server import ServerState

_INVALID: Final = "Invalid HTTP request received."
_UPGRADE: Final = re.compile(rb"(?im)^upgrade:.*\r\n")
_END_OF_HEAD: Final = b"\r\n\r\n"
_VERSIONS: Final = frozenset({"1.0", "1.1"})


class _Refused(Exception):
    """Error of a head that is refused."""


class _Upgrade(Exception):
    """Signal that the client asks for another protocol."""


class HttptoolsConnection(HttpToolsProtocol):
    """Parser of one connection's requests, one at a time."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._most = config.h11_max_incomplete_event_size or 65536
        self._begin()
        self._waiting = b""
        """Bytes of the next request, which are not parsed until this one is answered."""
        self._upgrading: bytes | None = None
        """Value of Upgrade that was removed from the head that is parsed next."""
        self.upgrade: bytes | None = None
        """Protocol that the current request asks for, if it asks for another one."""
        self._last = False
        """Whether this request is the last: the connection ends with its answer."""

    def _begin(self) -> None:
        # A parser of our own: uvicorn's is configured to read on after `Connection: close`.
        self.parser = httptools.HttpRequestParser(self)
        self._at: Literal["start", "head", "body"] = "start"
        self._head = b""
        """Received part of an incomplete head."""
        self._idle_bytes = 0
        """Bytes since the last piece of a body."""
        self._hosts = 0
        self._upgrade = False

    # ------------------------------------------------------------ bytes
    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._last:
            return
        if self._waiting or (self._at == "start" and self._answering()):
            self._waiting += data
            self.flow.pause_reading()
            return
        self._feed(data)

    def body_is_coming(self) -> bool:
        """Whether the head of a request was received, and its body was not."""
        return self._at == "body"

    def unparsed(self) -> bytes:
        """The bytes behind the current request, which are no request of HTTP."""
        waiting, self._waiting = self._waiting, b""
        return waiting

    def on_response_complete(self) -> None:
        """Parse the waiting bytes after an answer."""
        super().on_response_complete()
        if self._waiting:
            self.loop.call_soon(self._resume)

    def send_document(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Answer the current request, a POST, with a whole document in one write.

        uvicorn's `send` checks each header and is called for the head and for the body: a fifth of
        what a short call costs beyond HTTP. `headers` are our own, with the length of the body.

        Returns:
            Whether it was answered; if not, it has to be answered by `send`, which is not that of
            the connection, or has to wait.
        """
        cycle = self.cycle
        if send != cycle.send or cycle.response_started or cycle.disconnected:
            return False
        if self.flow.write_paused:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            lines += name, b": ", value, b"\r\n"
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines += b"\r\n", body
        self.transport.write(b"".join(lines))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def _resume(self) -> None:
        if self._waiting and not self.transport.is_closing():
            waiting, self._waiting = self._waiting, b""
            self.data_received(waiting)

    def _answering(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _feed(self, data: bytes) -> None:
        if self._at == "body":
            self._idle_bytes += len(data)
        else:
            self._head += data
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._upgrade:
                self._feed_plain(self._head)
            else:
                self._refuse()
            return
        if self._at != "head":
            self._head = b""
        if len(self._head) > self._most or self._idle_bytes > self._most:
            self._refuse()

    def _feed_plain(self, data: bytes) -> None:
        """Parse this request again, as one that asks for no other protocol (RFC 9110, 7.8)."""
        head, end, rest = data.partition(_END_OF_HEAD)
        plain = _UPGRADE.sub(b"", head + b"\r\n")[:-2]
        if plain == head:
            self._refuse()  # CONNECT
            return
        asked = _UPGRADE.search(head + b"\r\n")
        self._begin()
        self._upgrading = asked.group().partition(b":")[2].strip() if asked else None
        self._feed(plain + end + rest)

    def _refuse(self) -> None:
        answering = self._answering()
        if self._at == "body" and self.cycle.response_started:
            self.transport.close()
        elif self._at != "body" and answering:
            # It belongs to a next request, received together with a valid one.
            self.cycle.keep_alive = False
        else:
            self.send_400_response(_INVALID)
        self._last = True

    # ------------------------------------------------------------ the parser's callbacks
    def on_message_begin(self) -> None:
        if self._answering():
            raise _Refused
        self._at = "head"
        self._hosts = 0
        self.upgrade, self._upgrading = self._upgrading, None
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers are dropped, because they come after all checks."""
        if self._at == "body":
            return
        name = name.lower()
        value = value.rstrip(b" \t")
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise _Refused
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        if version not in _VERSIONS or self._hosts > 1 or (version == "1.1" and not self._hosts):
            raise _Refused
        if len(self._head) > self._most and self._size() > self._most:
            raise _Refused
        if self.parser.should_upgrade():
            self._upgrade = True
            raise _Upgrade
        super().on_headers_complete()
        self._at = "body"
        self._idle_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._at = "start"
        super().on_message_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
