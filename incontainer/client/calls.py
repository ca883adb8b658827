"""Calls of the client to the server: each ends exactly once, with an answer or at a deadline."""

from __future__ import annotations

import json
import os
import time

from .. import wire
from ..io.json_values import as_object, as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..io.event_loop import Loop, LoopTimer

    Json = dict[str, Any]

QUIET_SECONDS = 10.0  # a call without news for this long reports to the agent that it still runs
SWEEP_SECONDS = 0.25  # deadlines are checked no more often than this
FAR = float("inf")

# Errors that arise on this side; the server's own kinds are tool_error, timeout, caller_gone, …
LINK_ERROR = -32000
LINK_BROKE = "unknown"  # kind of a call that may or may not have been carried out


class CallFailed:
    """Reason why a call has no result: a JSON-RPC error of the server, or a local one."""

    __slots__ = ("code", "kind", "message")

    def __init__(self, code: int, message: str, kind: str) -> None:
        self.code = code
        self.message = message
        self.kind = kind


class PendingCall:
    """One request to the server that waits for its answer."""

    __slots__ = (
        "_method",
        "_params",
        "done",
        "due",
        "line",
        "news_due",
        "number",
        "on_progress",
        "outage_due",
        "outage_seconds",
        "repeatable",
        "seconds",
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
        self._method = method
        self._params = params
        self.done = done
        self.outage_seconds = outage_seconds
        self.repeatable = repeatable
        self.on_progress = on_progress
        self.number = 0
        self.line = b""
        self.sent = False
        self.started = time.monotonic()
        self.seconds = FAR  # for an answer of a connected server
        self.due = FAR
        self.outage_due = FAR
        self.news_due = FAR if on_progress is None else self.started + QUIET_SECONDS

    def encode(self, number: int) -> bytes:
        request = {"jsonrpc": "2.0", "id": number, "method": self._method, "params": self._params}
        self.number = number
        self.line = wire.encode_json(request)
        self._params = {}  # only the line is kept while it waits
        return self.line


def new_call_id() -> str:
    """A UUID version 4, without the 3 ms that `import uuid` takes."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return "-".join(parts)


class PendingCalls:
    """Calls that wait for an answer.

    One timer serves all deadlines, because most calls end long before theirs. `on_give_up(number)`
    is called before a call ends without an answer.
    """

    def __init__(self, loop: Loop, on_give_up: Callable[[int], None]) -> None:
        self._loop = loop
        self._on_give_up = on_give_up
        self._calls: dict[int, PendingCall] = {}
        self._last_number = 0
        self._timer: LoopTimer | None = None
        self._timer_due = FAR
        self.outage = "no server answers on the relay"  # why there is no link; empty if there is

    def add(self, call: PendingCall, deadline_seconds: float) -> int | None:
        """Number a call and start its deadlines; None if it failed because it cannot be sent."""
        self._last_number += 1
        number = self._last_number
        try:
            size = len(call.encode(number))
        except (ValueError, RecursionError) as error:
            call.done(None, CallFailed(LINK_ERROR, f"cannot be sent: {error}", "invalid"))
            return None
        if size > wire.MAX_SESSION_LINE:
            message = (
                f"the arguments take {size} bytes, at most {wire.MAX_SESSION_LINE} can be sent"
            )
            call.done(None, CallFailed(LINK_ERROR, message, "too_large"))
            return None
        self._calls[number] = call
        call.seconds = deadline_seconds
        if self.outage:
            call.outage_due = call.started + call.outage_seconds
        else:
            call.due = call.started + deadline_seconds
        self._arm(min(call.due, call.outage_due, call.news_due))
        return number

    def pending(self) -> list[PendingCall]:
        """All waiting calls, in the order in which they were made."""
        return list(self._calls.values())

    def take(self, number: int) -> PendingCall | None:
        """Remove a call; None if it has ended before."""
        return self._calls.pop(number, None)

    def fail(self, number: int, message: str, kind: str) -> None:
        """End a call with a local error; harmless when it has ended before."""
        call = self.take(number)
        if call is not None:
            call.done(None, CallFailed(LINK_ERROR, message, kind))

    def settle(self, number: int, message: Json) -> None:
        """End a call with the server's answer; harmless when it has ended before."""
        call = self.take(number)
        error: object = message.get("error")
        if call is not None:
            if error is None:
                call.done(message.get("result"), None)
            else:
                call.done(None, failure(error))

    def news(self, number: int, text: str) -> None:
        """Pass on a progress message of the server, which is at work: the deadline starts again."""
        call = self._calls.get(number)
        if call is not None:
            if call.due != FAR:
                call.due = time.monotonic() + call.seconds
            self._news(call, text)

    def linked(self) -> None:
        """Note a connected server: outages end, and each call's deadline starts again."""
        self.outage = ""
        now = time.monotonic()
        for call in self._calls.values():
            call.outage_due = FAR
            call.due = now + call.seconds
            self._arm(call.due)

    def unlinked(self, reason: str) -> None:
        """Note a lost server: each call's `outage_seconds` start now."""
        begins, self.outage = not self.outage, reason
        if begins:
            now = time.monotonic()
            for call in self._calls.values():
                call.due = FAR  # no server works on it
                call.outage_due = now + call.outage_seconds
                self._arm(call.outage_due)

    def _news(self, call: PendingCall, text: str) -> None:
        if call.on_progress is not None:
            call.news_due = time.monotonic() + QUIET_SECONDS
            call.on_progress(text)

    def _arm(self, due: float) -> None:
        if self._timer_due <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        self._timer_due = max(due, now + SWEEP_SECONDS)
        self._timer = self._loop.call_later(self._timer_due - now, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._timer_due = FAR
        now = time.monotonic()
        for call in self.pending():
            if call.due <= now:
                self._give_up(call, f"no answer within {call.seconds:g} s", "timeout")
            elif call.outage_due <= now:
                outage = f"not connected to Oubliette for {call.outage_seconds:g} s"
                self._give_up(call, f"{outage}: {self.outage}", "disconnected")
            elif call.news_due <= now:
                self._news(call, f"still running after {now - call.started:.0f} s")
        times = (min(call.due, call.outage_due, call.news_due) for call in self._calls.values())
        self._arm(min(times, default=FAR))

    def _give_up(self, call: PendingCall, message: str, kind: str) -> None:
        self._on_give_up(call.number)
        self.fail(call.number, message, kind)


def failure(error: object) -> CallFailed:
    """Parse a JSON-RPC error object of any shape."""
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
