"""Control link: mutual authentication, then one JSON object per line."""

from __future__ import annotations

import os

from .. import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ..io.connection import Connection
    from ..io.event_loop import Loop

    class ControlHandler(Protocol):
        """Methods that a control link needs of the guest."""

        @property
        def boot(self) -> str:
            """Random name of this guest process, new at each start."""
            ...

        def claim(self, link: GuestControlLink, epoch: int) -> None:
            """Make `link` the server's link; raises `wire.WireError` for a stale epoch."""
            ...

        def hello(self) -> dict[str, Any]: ...

        def request(self, link: GuestControlLink, request: dict[str, Any]) -> None: ...

        def left(self, link: GuestControlLink) -> None: ...


REQUESTS_HELD = 1 << 20  # bytes of unread answers before no more requests are read
EVENTS_DROPPED = 256 * 1024  # bytes of unread answers before `refused` events are left out
UNREAD_LIMIT = 16 << 20  # bytes of unread answers before the server is taken for dead


class GuestControlLink:
    """Owner of a control connection."""

    def __init__(
        self, loop: Loop, connection: Connection, handler: ControlHandler, key: bytes, nonce: str
    ) -> None:
        self._connection = connection
        self._handler = handler
        self._key = key
        self._nonce = nonce
        self._challenge = os.urandom(16).hex()
        self._lines = wire.LineReader(wire.MAX_CONTROL_LINE)
        self._proven = False
        self._deadline = loop.call_later(wire.PROOF_TIMEOUT, lambda: self.refuse("no proof"))
        connection.owner = self
        proof = wire.host_proof(key, nonce, self._challenge)
        self.send({"challenge": self._challenge, "proof": proof, "boot": handler.boot})

    def send(self, value: dict[str, Any]) -> None:
        self._connection.send(wire.encode_json(value))
        if self._connection.buffered > UNREAD_LIMIT:
            self._connection.close()
        elif self._connection.buffered > REQUESTS_HELD:
            self._connection.pause()

    def event(self, value: dict[str, Any]) -> None:
        """Send an event, unless agents can cause it at will and the server has fallen behind."""
        if value["event"] != "refused" or self._connection.buffered < EVENTS_DROPPED:
            self.send(value)

    def received(self, data: bytes) -> None:
        """Process lines from the server."""
        for line in self._lines.feed(data):
            if not self._connection.is_open:
                return
            if not self._proven:
                self._check(line)
            elif isinstance(line, wire.OversizeLine):
                reason = f"line of {line.size} bytes, the limit is {wire.MAX_CONTROL_LINE}"
                self.answer_error(None, "too_large", reason)
            else:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            request = wire.decode_json(line)
        except wire.WireError as error:
            self.answer_error(None, "invalid", str(error))
            return
        self._handler.request(self, request)

    def _check(self, line: bytes | wire.OversizeLine) -> None:
        try:
            self._handler.claim(self, self._proven_epoch(line))
        except wire.WireError as error:
            self.refuse(str(error))
            return
        self._proven = True
        self._deadline.cancel()
        self.send(self._handler.hello())

    def _proven_epoch(self, line: bytes | wire.OversizeLine) -> int:
        if isinstance(line, wire.OversizeLine):
            raise wire.WireError("bad proof")
        answer = wire.decode_json(line)
        expected = wire.server_proof(self._key, self._challenge, self._nonce)
        if not wire.same(answer.get("proof"), expected):
            raise wire.WireError("bad proof")
        epoch: object = answer.get("epoch")
        if type(epoch) is not int or epoch < 0:
            raise wire.WireError("epoch is not a number")
        if not _common_version(answer.get("versions")):
            raise wire.WireError("no common version")
        return epoch

    def refuse(self, reason: str) -> None:
        """Send the reason as an error line, and close."""
        self._deadline.cancel()
        self._connection.send(wire.error_line(reason))
        self._connection.finish()

    def evict(self) -> None:
        """Close: a newer server has connected."""
        self.send({"event": "evicted"})
        self._connection.finish()

    def finish(self) -> None:
        """Close once everything is sent."""
        self._connection.finish()

    def answer(self, request: object, result: dict[str, Any]) -> None:
        self.send({"id": request, "ok": result})

    def answer_error(self, request: object, code: str, message: str) -> None:
        self.send({"id": request, "error": {"code": code, "message": message}})

    def drained(self) -> None:
        """Resume reading requests: the server has read the answers."""
        self._connection.resume()

    def closed(self) -> None:
        self._deadline.cancel()
        if self._proven:
            self._handler.left(self)


def _common_version(versions: Any) -> bool:
    """Check that the server's range `[lowest, highest]` includes our version; none means 1."""
    if versions is None:
        return True
    try:
        low, high = versions
        return bool(low <= wire.PROTOCOL_MAX and high >= wire.PROTOCOL_MIN)
    except (TypeError, ValueError):
        return False
