"""Bridge from `opencode serve` to standard streams: HTTP and its events as lines of JSON.

It works on every container runtime: no port is published, and no network between the server of
Oubliette and this container is needed. The bridge does not interpret anything. Every event of the
server becomes a line, each line of input a request, and its answer a line:

    > {"id": "x", "method": "POST", "path": "/session", "body": {}, "stamp": "…"?, "newest": "…"?}
    > {"id": "x", "method": "GET", "path": "/session/…/message", "ids": true}
    < {"id": "x", "status": 200, "body": {…}}        or {"id": "x", "error": "why there is none"}
    < {"event": {"id": …, "type": …, "properties": {…}}}
    < {"oversize": <bytes>}                          an event that is too long for a line
    < {"bridge": "serving"} | {"bridge": "again"} | {"bridge": "failed", "reason": "…"}
    < {"bridge": "rules", "notes": ["…"]}            rules of the repository that are not read

`stamp`, 14 characters, requests a message id made here: OpenCode orders messages by their ids,
whose first half is the time on its own clock, which is this machine's and not that of Oubliette's
server. `newest` is the stamp of the message that a request is about: the request is dropped once
another message was sent. With `ids` the answer's body has the ids of the messages alone: a whole
conversation is too long for a line. `again` means that the event stream had broken and events may
be lost.

Requests are made one after the other, and only while the event stream is open.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque

from ... import wire
from ...io import linux
from ...io.event_loop import Loop
from ...io.json_values import as_object
from ...io.lines import Lines
from ...io.stdio import log, take_stdio
from .agent import not_started, program_of
from .http import MAX_BODY, EventReader, HttpExchange, ServerAddress
from .server import OpencodeServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

REQUEST_SECONDS = 120.0  # until the first bytes of an answer
SILENCE_SECONDS = 90.0  # of the event stream, which has a heartbeat every 10 s
RECONNECT_SECONDS = 0.25  # between two attempts to open the event stream
OUTAGE_SECONDS = 180.0  # without events; then the server is ended
FLUSH_SECONDS = 30.0  # for the last output to the guest
MAX_LIST = 256 << 20  # bytes of a conversation, of which only the ids are passed on
HEARTBEAT = b'"type":"server.heartbeat"'
CONNECTED = b'"type":"server.connected"'


class OpencodeBridge:
    """Bridge between the guest's pipes and the server's port."""

    def __init__(self, loop: Loop, program: str, stdin: int, stdout: int) -> None:
        self._loop = loop
        self._lines = Lines(
            loop,
            stdin,
            stdout,
            on_line=self._line,
            on_closed=self._closed,
            on_full=self._full,
        )
        self._address: ServerAddress | None = None
        self._events: HttpExchange | None = None
        self._reader = EventReader()
        self._events_open = False  # the stream of events is open
        self._served = False  # and was open before
        self._outage = loop.call_later(0, _nothing)
        self._requests: deque[Json] = deque()
        self._current: HttpExchange | None = None
        self._stamp: str | None = None  # of the newest message
        self._ending = False
        self._failed = self._gone = self._stopped = False
        self.code = 0
        self._server = OpencodeServer(
            loop,
            program,
            on_listening=self._listening,
            on_ended=self._ended,
            on_failed=self._fail,
        )
        loop.on_signal(signal.SIGTERM, self.end)

    # ------------------------------------------------------------------ the end

    def end(self) -> None:
        if not self._ending:
            self._ending = True
            self._server.end()

    def _closed(self, _reason: str) -> None:
        self.end()

    def _fail(self, reason: str) -> None:
        if not self._ending:
            log(reason)
            self._say({"bridge": "failed", "reason": reason})
            self._failed = True
            self.end()

    def _ended(self, code: int) -> None:
        """Exit as the server did, unless the bridge was asked to end."""
        if self._current is not None:
            self._current.close()
        self._outage.cancel()
        if self._ending:
            self.code = 1 if self._failed else 0
        else:
            self._ending = True
            self.code = code or 1
        self._gone = True
        self._loop.call_later(FLUSH_SECONDS, self._stop)

    def _stop(self) -> None:
        self._stopped = True

    @property
    def over(self) -> bool:
        """Whether the server has ended and all its output has been passed on."""
        if not self._gone:
            return False
        said = self._events is None and not self._lines.waiting
        return said or self._lines.closed or self._stopped

    # ------------------------------------------------------------------ events

    def _listening(self, port: int) -> None:
        self._address = ServerAddress(port, self._server.password)
        self._reconnect("not yet there")

    def _reconnect(self, reason: str) -> None:
        """Open the event stream again, until `OUTAGE_SECONDS` have passed."""
        self._events = None
        if self._gone:
            return
        if self._events_open or not self._served:
            self._outage.cancel()
            self._outage = self._loop.call_later(OUTAGE_SECONDS, self._give_up)
        if self._events_open and not self._ending:
            log(f"the stream of events broke: {reason}")
        self._events_open = False
        delay = RECONNECT_SECONDS if self._served else 0.0
        self._loop.call_later(delay, self._listen)

    def _give_up(self) -> None:
        self._fail(f"opencode serve sent no events for {OUTAGE_SECONDS:g} s")

    def _listen(self) -> None:
        if self._gone or self._address is None:
            return
        self._reader = EventReader()
        request = self._address.request("GET", "/event", None, "text/event-stream")
        self._events = HttpExchange(
            self._loop,
            self._address,
            request,
            seconds=SILENCE_SECONDS,
            on_body=self._event_data,
            on_end=self._event_end,
        )

    def _event_end(self, reason: str) -> None:
        self._reconnect(reason or "it ended")

    def _event_data(self, status: int, data: bytes) -> None:
        if status != 200:
            self._fail(f"opencode serve answered {status} to GET /event")
            return
        for event in self._reader.feed(data):
            if isinstance(event, int):
                self._lines.send(b'{"oversize":%d}\n' % event)
                continue
            head = event[:256]
            if CONNECTED in head:
                self._hear()
            elif HEARTBEAT not in head:
                self._lines.send(b'{"event":%s}\n' % event.replace(b"\n", b" "))

    def _hear(self) -> None:
        self._outage.cancel()
        self._events_open = True
        self._say({"bridge": "again" if self._served else "serving"})
        if not self._served:
            self._server.answers()
            if self._server.notes:
                self._say({"bridge": "rules", "notes": self._server.notes})
        self._served = True
        self._next()

    # ------------------------------------------------------------------ requests

    def _line(self, line: bytes | wire.OversizeLine) -> None:
        if isinstance(line, wire.OversizeLine):
            self._say({"id": line.request_id, "error": f"a request of {line.size} bytes"})
            return
        if not line.strip():
            return
        try:
            found = as_object(json.loads(line))
        except (ValueError, RecursionError):
            found = None
        if found is None or not isinstance(found.get("path"), str):
            self._say({"bridge": "unreadable", "line": line[:200].decode(errors="replace")})
            return
        self._requests.append(found)
        self._next()

    def _next(self) -> None:
        if self._current is not None or not self._events_open or self._ending or not self._requests:
            return
        assert self._address is not None
        asked = self._requests.popleft()
        request_id: object = asked.get("id")
        body = as_object(asked.get("body"))
        stamp: object = asked.get("stamp")
        if body is not None and isinstance(stamp, str):
            body = {"messageID": message_id(time.time(), stamp), **body}
            self._stamp = stamp
        if self._stamp is not None and asked.get("newest", self._stamp) != self._stamp:
            self._say({"id": request_id, "error": "it is about an earlier message"})
            self._next()
            return
        encoded = None if body is None else json.dumps(body).encode()
        received: list[bytes] = []
        size = 0
        ids = asked.get("ids") is True
        limit = MAX_LIST if ids else MAX_BODY

        def take(_status: int, data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size <= limit:
                received.append(data)

        def end(reason: str) -> None:
            self._current = None
            if reason:
                self._say({"id": request_id, "error": reason})
            elif size > limit:
                self._say({"id": request_id, "error": f"an answer of {size} bytes"})
            else:
                body = b"".join(received)
                self._answer(request_id, exchange.status, ids_in(body) if ids else body)
            self._next()

        try:
            method, path = str(asked.get("method", "GET")), str(asked["path"])
            request = self._address.request(method, path, encoded, "application/json")
        except UnicodeEncodeError:
            self._say({"id": request_id, "error": "a path that no URL can be"})
            return
        self._current = exchange = HttpExchange(
            self._loop,
            self._address,
            request,
            seconds=REQUEST_SECONDS,
            on_body=take,
            on_end=end,
        )

    # ------------------------------------------------------------------ output

    def _say(self, message: Json) -> None:
        self._lines.send(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _answer(self, request_id: object, status: int, body: bytes) -> None:
        """Pass the answer's JSON on without its newlines, which are only white space in it."""
        head = json.dumps({"id": request_id, "status": status}).encode()[:-1]
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            text = body[:4096].decode(errors="replace")
            body = json.dumps({"text": text}).encode()
        self._lines.send(head + b',"body":' + body.replace(b"\n", b" ") + b"}\n")

    def _full(self, full: bool) -> None:  # noqa: FBT001 -- a callback's only argument
        """Pause or resume the server's streams and our input: the reader of our output is slow."""
        if full:
            self._lines.pause()
        else:
            self._lines.resume()
        if self._events is not None:
            if full:
                self._events.pause()
            else:
                self._events.resume()


def message_id(seconds: float, stamp: str) -> str:
    """An id as OpenCode makes them: milliseconds and a count in 48 bits, 14 characters."""
    moment = int(seconds * 1000) * 0x1000 & 0xFFFFFFFFFFFF
    return f"msg_{moment:012x}{stamp}"


def ids_in(body: bytes) -> bytes:
    """Return the ids of the messages in an answer, as JSON; an answer of another form as it is."""
    try:
        messages = json.loads(body)
        return json.dumps([str(message["info"]["id"]) for message in messages]).encode()
    except (ValueError, RecursionError, KeyError, TypeError):
        return body[:MAX_BODY]


def _nothing() -> None:
    """Do nothing: callback of a timer that is only there to be cancelled."""


def main(arguments: list[str] | None = None) -> int:
    """Run the bridge; returns the server's exit code, and ends by the signal that ended it."""
    program = program_of(arguments or [])
    if program is None:
        return 2
    linux.hide_from_tracers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin, stdout = take_stdio()
    loop = Loop()
    try:
        bridge = OpencodeBridge(loop, program, stdin, stdout)
    except OSError as error:
        return not_started(program, error)
    while not bridge.over:
        loop.turn()
    loop.close()
    if bridge.code < 0:
        if -bridge.code != signal.SIGKILL:
            signal.signal(-bridge.code, signal.SIG_DFL)
        os.kill(os.getpid(), -bridge.code)
    return bridge.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
