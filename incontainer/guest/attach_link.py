"""Attach connection: a process's output from an offset on, and its stdin."""

from __future__ import annotations

from .. import wire
from ..wire import MAX_FRAME, WireError, encode_frame, encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..io.connection import Connection
    from .process.process import GuestProcess
    from .process.streams import Stream

AHEAD = 512 * 1024  # bytes handed to the connection beyond what the kernel has taken


class _Cursor:
    """Position of this link in one stream, and whether its end was sent."""

    __slots__ = ("ended", "offset", "stream")

    def __init__(self, stream: Stream, offset: int) -> None:
        self.stream = stream
        self.offset = offset
        self.ended = False


class AttachLink:
    """Owner of an attach connection until the process has ended or a newer link evicts it."""

    def __init__(
        self,
        connection: Connection,
        process: GuestProcess,
        offsets: tuple[int, int],
        refused: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._process = process
        self._refused = refused
        self._decoder = wire.FrameDecoder()
        self._frames: list[wire.Frame] = []  # received, waiting for room in the stdin
        self._cursors = (
            _Cursor(process.out, offsets[0]),
            _Cursor(process.err, offsets[1]),
        )
        self._exit_sent = False
        connection.owner = self
        if process.reader is not None:
            process.reader.evict()
        process.reader = self
        connection.send(encode_frame(wire.STDIN_OK, process.stdin.seq))
        for cursor in self._cursors:
            self._skip_gap(cursor)
        self.pump()

    def _skip_gap(self, cursor: _Cursor) -> None:
        start = cursor.stream.spool.start
        if cursor.offset < start:
            gap = encode_json({"stream": cursor.stream.number, "next": start})
            self._connection.send(encode_frame(wire.GAP, cursor.offset, gap))
            cursor.offset = start

    # From the process

    def pump(self) -> None:
        """Send the available output while the connection has room for it."""
        if not self._connection.is_open or self._exit_sent:
            return
        self._take_frames()
        moved = True
        while moved and self._connection.buffered < AHEAD:
            moved = False
            for cursor in self._cursors:
                moved = self._send_piece(cursor) or moved
        if self._process.exit is not None and all(cursor.ended for cursor in self._cursors):
            self._exit_sent = True
            exit_ = encode_json(self._process.exit)
            self._connection.send(encode_frame(wire.EXIT, 0, exit_))
            self._connection.finish()

    def _send_piece(self, cursor: _Cursor) -> bool:
        if cursor.ended or not self._connection.is_open:
            return False
        stream = cursor.stream
        # An acknowledgement over another link may have freed what this link has not sent yet
        self._skip_gap(cursor)
        data = stream.spool.read(cursor.offset, MAX_FRAME)
        if data:
            self._connection.send(encode_frame(stream.number, cursor.offset, data))
            cursor.offset += len(data)
            if self._process.until_detached:  # no other link asks for it
                stream.ack(cursor.offset)
            return True
        if stream.ended:
            cursor.ended = True
            self._connection.send(encode_frame(wire.EOF, stream.number))
        return False

    def drained(self) -> None:
        """Send more output: the connection's buffer is empty."""
        self.pump()

    # To the process

    def received(self, data: bytes) -> None:
        """Decode frames from the server and apply them to the process's stdin."""
        try:
            self._frames += self._decoder.feed(data)
            self._take_frames()
        except WireError as error:
            self._fail(str(error))

    def _take_frames(self) -> None:
        stdin = self._process.stdin
        before = stdin.seq
        again = False
        taken = 0
        for frame in self._frames:
            if stdin.is_full:
                break
            taken += 1
            if frame.kind not in (wire.STDIN, wire.EOF):
                self._fail(f"frame kind {frame.kind} is not the server's to send")
                return
            if frame.n <= stdin.seq:
                again = True
            elif frame.n > stdin.seq + 1:
                self._fail(f"stdin frame {frame.n} after {stdin.seq}")
                return
            elif frame.kind == wire.STDIN:
                stdin.accept(frame.n, frame.payload)
            else:
                stdin.end(frame.n)
        del self._frames[:taken]
        if stdin.seq != before or again:
            self._connection.send(encode_frame(wire.STDIN_OK, stdin.seq))
        if self._frames:
            self._connection.pause()
        else:
            self._connection.resume()

    def _fail(self, reason: str) -> None:
        self._refused(reason)
        self._connection.close()

    def evict(self) -> None:
        """Close: a newer link has replaced this one, or the process was forgotten."""
        self._connection.close()

    def closed(self) -> None:
        """Detach from the process; frames received in part are discarded."""
        self._frames.clear()
        if self._process.reader is self:
            self._process.detached()
