"""Link of the client to the server: JSON-RPC over the relay, with reconnection and resending.

A call stays pending while the link breaks and comes back: it is sent again with the same `call_id`,
by which the server joins it to what is already running. It ends with an answer, by `cancel`, at its
deadline, or when the link has been down for longer than it may be.
"""

from __future__ import annotations

import json
import os
import socket

from .. import wire
from ..io.json_values import as_object, as_text
from ..io.lines import Lines
from .calls import LINK_BROKE, PendingCall, PendingCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..io.event_loop import Loop, LoopTimer

    Json = dict[str, Any]

BACKOFF_FIRST = 0.05  # seconds
BACKOFF_LAST = 2.0  # seconds

METHOD_NOT_FOUND = -32601


class Link:
    """Connection to the relay that reconnects, and carries calls.

    `on_config(params)` is called for each `caller_tools_config`, `on_connected()` whenever a link
    is open (the peer may not be there yet), `on_unreachable()` when the relay was missing or
    refused us (not when a link broke: another server follows), and `on_full(full)` when the
    relay falls behind.
    """

    def __init__(
        self,
        loop: Loop,
        path: str,
        header: wire.Downstream,
        *,
        on_config: Callable[[Json], None],
        on_connected: Callable[[], None],
        on_unreachable: Callable[[], None],
        on_full: Callable[[bool], None],
        log: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._path = path
        self._header = header.line()
        self._sends_hello = header.secret is not None  # a bare peer may have nothing to send
        self._on_config = on_config
        self._on_connected = on_connected
        self._on_unreachable = on_unreachable
        self._on_full = on_full
        self._log = log
        self._calls = PendingCalls(loop, self._notify_cancelled)
        self._socket: socket.socket | None = None
        self._lines: Lines | None = None
        self._paired = False
        self._failures = 0
        self._trouble = ""
        self._retry: LoopTimer | None = None
        self._paused = False
        self._closing = False

    @property
    def waiting(self) -> int:
        """Bytes that the relay has not taken yet."""
        return self._lines.waiting if self._lines is not None else 0

    def connect(self) -> None:
        """Try to connect now; on failure try again later, with growing pauses."""
        self._retry = None
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.connect(self._path)
        except OSError as error:
            peer.close()
            self._down(f"cannot reach the relay at {self._path}: {error.strerror or error}")
            self._on_unreachable()
            return
        self._socket = peer
        fd = peer.fileno()
        lines = self._lines = Lines(
            self._loop, fd, fd, on_line=self._line, on_closed=self._broken, on_full=self._on_full
        )
        if self._paused:
            self._lines.pause()
        self._lines.send(self._header)
        if not self._sends_hello:
            self._pair()
        for call in self._calls.pending():
            self._send(call)
        if not lines.closed:
            self._on_connected()

    def pause(self) -> None:
        """Stop reading from the relay, because the agent does not read."""
        self._paused = True
        if self._lines is not None:
            self._lines.pause()

    def resume(self) -> None:
        self._paused = False
        if self._lines is not None:
            self._lines.resume()

    def call(self, call: PendingCall, deadline_seconds: float) -> int:
        """Send a call, now or as soon as there is a link.

        Returns:
            The number by which it can be cancelled; 0 if it has failed already.

        """
        number = self._calls.add(call, deadline_seconds)
        if number is None:
            return 0
        self._send(call)
        return number

    def cancel(self, number: int) -> None:
        """Cancel the call on the server; harmless when it has ended."""
        if self._calls.take(number) is not None:
            self._notify_cancelled(number)

    def notify(self, method: str, params: Json) -> None:
        """Send a notification, if there is a link."""
        if self._lines is not None:
            self._lines.send(
                wire.encode_json({"jsonrpc": "2.0", "method": method, "params": params})
            )

    def close(self) -> None:
        """Cancel all calls and stop reconnecting; pending output may still be written."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
        for call in self._calls.pending():
            self.cancel(call.number)

    # Calls

    def _send(self, call: PendingCall) -> None:
        if self._lines is not None:
            call.sent = True
            self._lines.send(call.line)

    def _notify_cancelled(self, number: int) -> None:
        self.notify("notifications/cancelled", {"requestId": number})

    # The link's state

    def _pair(self) -> None:
        if self._paired:
            return
        if self._trouble:
            self._log("connected again")
        self._paired = True
        self._failures = 0
        self._trouble = ""
        self._calls.linked()

    def _broken(self, reason: str) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._lines = None
        self._paired = False
        self._on_full(False)
        for call in self._calls.pending():
            if call.sent and not call.repeatable:
                message = (
                    "the link to Oubliette broke while the call ran, so its outcome is not known: "
                    "look before you call again"
                )
                self._calls.fail(call.number, message, LINK_BROKE)
        self._down(f"link {reason}")

    def _down(self, trouble: str) -> None:
        if self._closing:
            return
        if trouble != self._trouble:
            self._trouble = trouble
            self._log(trouble)
        self._calls.unlinked(trouble)
        longest = min(BACKOFF_LAST, BACKOFF_FIRST * 2.0 ** min(self._failures, 16))
        self._failures += 1
        jitter = 0.5 + int.from_bytes(os.urandom(2), "big") / 131072
        self._retry = self._loop.call_later(longest * jitter, self.connect)

    def _refused(self, reason: str) -> None:
        if self._lines is not None:
            self._lines.close()
        self._broken(f"refused by the relay: {reason}")
        self._on_unreachable()

    # Lines from the server

    def _line(self, line: bytes | wire.OversizeLine) -> None:
        try:
            self._work_on(line)
        except Exception as error:  # one odd line must not end the link
            self._log(f"failed at a line of the server: {error!r}")

    def _work_on(self, line: bytes | wire.OversizeLine) -> None:
        if isinstance(line, wire.OversizeLine):
            self._long_line(line)
            return
        if not self._paired:
            refusal = wire.parse_error(line)
            if refusal is not None:
                self._refused(refusal)
                return
        if not line.strip():
            return
        try:
            message = wire.decode_json(line)
        except wire.WireError as error:
            self._log(f"ignored a line of {len(line)} bytes from the server: {error}")
            return
        self._pair()
        self._message(message)

    def _long_line(self, line: wire.OversizeLine) -> None:
        self._pair()
        reason = f"the answer takes {line.size} bytes, at most {wire.MAX_SESSION_LINE} can be read"
        self._log(f"dropped a line of the server: {reason}")
        if isinstance(line.request_id, int):
            self._calls.fail(line.request_id, reason, "too_large")

    def _message(self, message: Json) -> None:
        # the relay's first form has a type in place of a method
        method = message.get("method", message.get("type"))
        params = as_object(message.get("params"))
        if method == "caller_tools_config":
            # some writers put the fields beside the type
            self._on_config(message if params is None else params)
        elif method == "progress":
            self._progress(params or {})
        elif method is not None:
            if "id" in message:
                self._answer_unknown(message["id"], method)
        else:
            self._response(message)

    def _progress(self, params: Json) -> None:
        number: object = params.get("id")
        if isinstance(number, int):
            self._calls.news(number, as_text(params.get("message")))

    def _answer_unknown(self, request_id: object, method: object) -> None:
        error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
        reply = wire.encode_json({"jsonrpc": "2.0", "id": request_id, "error": error})
        if self._lines is not None:
            self._lines.send(reply)

    def _response(self, message: Json) -> None:
        number: object = message.get("id")
        if isinstance(number, int) and not isinstance(number, bool):
            self._calls.settle(number, message)
        elif message.get("error") is not None:
            self._log(f"the server reports: {json.dumps(message['error'])[:300]}")
