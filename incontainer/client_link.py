"""The client's link to the server: JSON-RPC over the relay, kept up, nothing lost (DESIGN 4.2).

A call stays pending while the link breaks and comes back: it is sent again with the same `call_id`,
by which the server joins it to what is already running. It ends with an answer, by `cancel`, at its
deadline, or when the link has been down for longer than it may be.
"""

from __future__ import annotations

import json
import os
import socket
import time

from incontainer import wire
from incontainer.client_json import as_object, as_text
from incontainer.client_lines import Lines, LongLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from incontainer.loop import Loop, Timer

    Json = dict[str, Any]

BACKOFF_FIRST = 0.05  # seconds
BACKOFF_LAST = 2.0  # seconds
QUIET_SECONDS = 10.0  # a call without news for this long tells the agent that it still runs
SWEEP_SECONDS = 0.25  # deadlines are looked at no more often than this

FAR = float("inf")

METHOD_NOT_FOUND = -32601

# Errors that arise on this side; the server's own kinds are tool_error, timeout, caller_gone, …
LINK_ERROR = -32000
LINK_BROKE = "unknown"  # kind of a call that may or may not have been carried out


class CallFailed:
    """Why a call has no result: a JSON-RPC error of the server, or one that arose here."""

    __slots__ = ("code", "kind", "message")

    def __init__(self, code: int, message: str, kind: str) -> None:
        self.code = code
        self.message = message
        self.kind = kind


class Call:
    """One request to the server that waits for its answer."""

    __slots__ = (
        "done",
        "due",
        "method",
        "news_due",
        "on_progress",
        "outage_due",
        "outage_seconds",
        "params",
        "repeatable",
        "request_id",
        "sent",
        "started",
    )

    def __init__(
        self,
        method: str,
        params: Json,
        *,
        done: Callable[[object, CallFailed | None], None],
        outage_seconds: float,
        repeatable: bool = True,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """Describe a call.

        Args:
            method: The JSON-RPC method.
            params: Its parameters, `call_id` included where the method knows one.
            done: Called once with the result, or with None and the failure.
            outage_seconds: How long the link may be down before the call fails.
            repeatable: Whether it may be sent again when the link broke after it was sent.
            on_progress: Called with each progress message of the server, and with one of our
                own when there was none for `QUIET_SECONDS`.

        """
        self.method = method
        self.params = params
        self.done = done
        self.outage_seconds = outage_seconds
        self.repeatable = repeatable
        self.on_progress = on_progress
        self.request_id = 0
        self.sent = False
        self.started = time.monotonic()
        self.due = FAR
        self.outage_due = FAR
        self.news_due = FAR if on_progress is None else self.started + QUIET_SECONDS

    def line(self) -> bytes:
        """The request as one line."""
        return wire.encode_json(
            {
                "jsonrpc": "2.0",
                "id": self.request_id,
                "method": self.method,
                "params": self.params,
            }
        )


def new_call_id() -> str:
    """A UUID version 4, without the 3 ms that `import uuid` takes."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return "-".join(parts)


class Link:
    """Connects to the relay, again and again, and carries calls.

    `on_config(params)` is called for each `caller_tools_config`, `on_connected()` whenever a link
    stands (the peer may not be there yet), `on_unreachable()` when an attempt failed, and
    `on_full(full)` when the relay falls behind.
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
        self._says_hello = header.secret is not None  # a bare peer may have nothing to say
        self._on_config = on_config
        self._on_connected = on_connected
        self._on_unreachable = on_unreachable
        self._on_full = on_full
        self._log = log
        self._calls: dict[int, Call] = {}
        self._last_id = 0
        self._socket: socket.socket | None = None
        self._lines: Lines | None = None
        self._paired = False
        self._failures = 0
        self._trouble = ""
        self._retry: Timer | None = None
        self._sweep: Timer | None = None
        self._sweep_due = FAR
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
            return
        self._socket = peer
        fd = peer.fileno()
        lines = self._lines = Lines(
            self._loop, fd, fd, on_line=self._line, on_closed=self._broken, on_full=self._on_full
        )
        if self._paused:
            self._lines.pause()
        self._lines.send(self._header)
        if not self._says_hello:
            self._pair()
        for call in list(self._calls.values()):
            self._send(call)
        if not lines.closed:
            self._on_connected()

    def pause(self) -> None:
        """Stop reading from the relay, because the agent does not read."""
        self._paused = True
        if self._lines is not None:
            self._lines.pause()

    def resume(self) -> None:
        """Read from the relay again."""
        self._paused = False
        if self._lines is not None:
            self._lines.resume()

    def call(self, call: Call, deadline_seconds: float) -> int:
        """Send a call, now or as soon as there is a link.

        Returns:
            The number by which it can be cancelled; `call.done` may have been called already.

        """
        self._last_id += 1
        call.request_id = number = self._last_id
        try:
            size = len(call.line())
        except (ValueError, RecursionError) as error:
            call.done(None, CallFailed(LINK_ERROR, f"cannot be sent: {error}", "invalid"))
            return number
        if size > wire.MAX_SESSION_LINE:
            message = (
                f"the arguments take {size} bytes, at most {wire.MAX_SESSION_LINE} can be sent"
            )
            call.done(None, CallFailed(LINK_ERROR, message, "too_large"))
            return number
        self._calls[number] = call
        call.due = call.started + deadline_seconds
        if not self._paired:
            call.outage_due = call.started + call.outage_seconds
        self._arm(min(call.due, call.outage_due, call.news_due))
        self._send(call)
        return number

    def cancel(self, number: int) -> None:
        """Tell the server that nobody waits for this call any more; harmless when it has ended."""
        if self._calls.pop(number, None) is not None:
            self._notify_cancelled(number)

    def close(self) -> None:
        """Cancel all calls and make no new link; what is to be written may still be written."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
        for number in list(self._calls):
            self.cancel(number)

    # Calls

    def _send(self, call: Call) -> None:
        if self._lines is not None:
            call.sent = True
            self._lines.send(call.line())

    def _fail(self, number: int, message: str, kind: str) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.done(None, CallFailed(LINK_ERROR, message, kind))

    def _notify_cancelled(self, number: int) -> None:
        if self._lines is not None:
            params = {"requestId": number}
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            self._lines.send(wire.encode_json(note))

    # Deadlines: one timer for all calls, because most calls end long before theirs

    def _arm(self, due: float) -> None:
        if self._sweep_due <= due:
            return
        if self._sweep is not None:
            self._sweep.cancel()
        now = time.monotonic()
        self._sweep_due = max(due, now + SWEEP_SECONDS)
        self._sweep = self._loop.call_later(self._sweep_due - now, self._swept)

    def _swept(self) -> None:
        self._sweep = None
        self._sweep_due = FAR
        now = time.monotonic()
        for number, call in list(self._calls.items()):
            if call.due <= now:
                message = f"no answer within {call.due - call.started:g} s"
                self._give_up(number, message, "timeout")
            elif call.outage_due <= now:
                reason = self._trouble or "no server answers on the relay"
                message = f"not connected to Oubliette for {call.outage_seconds:g} s: {reason}"
                self._give_up(number, message, "disconnected")
            elif call.news_due <= now:
                self._news(call, f"still running after {now - call.started:.0f} s")
        times = (min(call.due, call.outage_due, call.news_due) for call in self._calls.values())
        self._arm(min(times, default=FAR))

    def _give_up(self, number: int, message: str, kind: str) -> None:
        self._notify_cancelled(number)
        self._fail(number, message, kind)

    def _news(self, call: Call, message: str) -> None:
        if call.on_progress is not None:
            call.news_due = time.monotonic() + QUIET_SECONDS
            call.on_progress(message)

    # The link's state

    def _pair(self) -> None:
        if self._paired:
            return
        if self._trouble:
            self._log("connected again")
        self._paired = True
        self._failures = 0
        self._trouble = ""
        for call in self._calls.values():
            call.outage_due = FAR

    def _broken(self, reason: str) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._lines = None
        was_paired, self._paired = self._paired, False
        self._on_full(False)
        for number, call in list(self._calls.items()):
            if call.sent and not call.repeatable:
                message = (
                    "the link to Oubliette broke while the call ran, so its outcome is not known: "
                    "look before you call again"
                )
                self._fail(number, message, LINK_BROKE)
            elif was_paired:
                call.outage_due = time.monotonic() + call.outage_seconds
                self._arm(call.outage_due)
        self._down(f"link {reason}")

    def _down(self, trouble: str) -> None:
        if self._closing:
            return
        if trouble != self._trouble:
            self._trouble = trouble
            self._log(trouble)
        self._on_unreachable()
        longest = min(BACKOFF_LAST, BACKOFF_FIRST * 2.0 ** min(self._failures, 16))
        self._failures += 1
        jitter = 0.5 + int.from_bytes(os.urandom(2), "big") / 131072
        self._retry = self._loop.call_later(longest * jitter, self.connect)

    def _refused(self, reason: str) -> None:
        if self._lines is not None:
            self._lines.close()
        self._broken(f"refused by the relay: {reason}")

    # Lines from the server

    def _line(self, line: bytes | LongLine) -> None:
        try:
            self._work_on(line)
        except Exception as error:  # one odd line must not end the link
            self._log(f"failed at a line of the server: {error!r}")

    def _work_on(self, line: bytes | LongLine) -> None:
        if isinstance(line, LongLine):
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

    def _long_line(self, line: LongLine) -> None:
        self._pair()
        reason = f"the answer takes {line.size} bytes, at most {wire.MAX_SESSION_LINE} can be read"
        self._log(f"dropped a line of the server: {reason}")
        if isinstance(line.request_id, int):
            self._fail(line.request_id, reason, "too_large")

    def _message(self, message: Json) -> None:
        method = message.get(
            "method", message.get("type")
        )  # the seeds' configuration has no method
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
        call = self._calls.get(number) if isinstance(number, int) else None
        if call is not None:
            self._news(call, as_text(params.get("message")))

    def _answer_unknown(self, request_id: object, method: object) -> None:
        error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
        reply = wire.encode_json({"jsonrpc": "2.0", "id": request_id, "error": error})
        if self._lines is not None:
            self._lines.send(reply)

    def _response(self, message: Json) -> None:
        number: object = message.get("id")
        if not isinstance(number, int) or isinstance(number, bool):
            if message.get("error") is not None:
                self._log(f"the server reports: {json.dumps(message['error'])[:300]}")
            return
        call = self._calls.pop(number, None)
        if call is None:
            return  # cancelled, or answered before the link broke
        error: object = message.get("error")
        if error is None:
            call.done(message.get("result"), None)
        else:
            call.done(None, failure(error))


def failure(error: object) -> CallFailed:
    """Read a JSON-RPC error object, whatever shape it has."""
    fields = as_object(error)
    if fields is None:
        return CallFailed(LINK_ERROR, json.dumps(error), "error")
    code: object = fields.get("code")
    data = as_object(fields.get("data")) or {}
    return CallFailed(
        code if isinstance(code, int) else LINK_ERROR,
        as_text(fields.get("message"), "failed without a reason"),
        as_text(data.get("kind"), "error"),
    )
