"""Streams of a process over one attached link.

The reader pulls: unread output stays in the socket, then in the guest's spool, and finally blocks
the process. Nothing is lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, TypeAlias

import msgspec

from oubliette.errors import InvalidParameter, ProtocolViolation
from oubliette.incontainer import wire
from oubliette.json_values import parse_object
from oubliette.runtime.guest import dial as dialing
from oubliette.runtime.guest.errors import GuestRefused, LinkClosed
from oubliette.runtime.guest.messages import Exit

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator

Stream: TypeAlias = Literal[1, 2]
STDOUT: Stream = 1
STDERR: Stream = 2
MAX_NUMBER: Final = 2**62
"""Largest offset: those behind any output after it are still numbers of 64 bits."""


class Output(msgspec.Struct, frozen=True):
    """Output of the process; `offset` is that of the first byte in its stream."""

    stream: Stream
    offset: int
    data: bytes


class StdinOk(msgspec.Struct, frozen=True):
    """The guest has accepted standard input up to this sequence number, once and finally."""

    seq: int


class Gap(msgspec.Struct, frozen=True):
    """The bytes from `asked` on are not kept any more; output continues at `next`."""

    stream: Stream
    asked: int
    next: int


class Eof(msgspec.Struct, frozen=True):
    """The stream was closed by the process and all that inherited it."""

    stream: Stream


class _GapPayload(msgspec.Struct, frozen=True):
    stream: Stream
    next: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


StreamItem: TypeAlias = Output | StdinOk | Gap | Eof | Exit

_ERROR = wire.ERROR.encode()


def pieces(data: bytes) -> list[bytes]:
    """Cut input that is not one message into frames, each with a number of its own.

    Send a message as one frame (up to 16 MiB) if possible: it is accepted whole or not at all.
    """
    most = wire.MAX_FRAME
    return [data[at : at + most] for at in range(0, len(data), most)]


class ProcessStream:
    """One attached link. One reader at a time; writes may come from other tasks."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._first = True
        self._head: tuple[int, int, int] | None = None
        self._over = False
        self.exit: Exit | None = None
        """Set once the last frame was read."""

    async def read(self) -> StreamItem | None:
        """Return the next item; None after `Exit`, which is always the last one.

        Raises:
            GuestRefused: the attach was refused.
            LinkClosed: the link ended before the process did; attach again.
            ProtocolViolation: the bytes are not a valid frame; the link is closed.
        """
        if self._over:
            return None
        try:
            # The head is kept until its payload has arrived: a read may be cancelled in between.
            kind, n, length = await self._frame_head()
            if kind not in wire.FRAME_KINDS or length > wire.MAX_FRAME or n > MAX_NUMBER:
                raise ProtocolViolation(f"no frame of ours: kind {kind}, {length} bytes, n {n}")
            payload = await self._reader.readexactly(length) if length else b""
            self._head = None
            return self._item(kind, n, payload)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise LinkClosed("the link ended before the process did") from error
        except (msgspec.MsgspecError, InvalidParameter) as error:
            raise ProtocolViolation(f"a frame cannot be read: {error}") from error

    async def _frame_head(self) -> tuple[int, int, int]:
        if self._head is not None:
            return self._head
        head = await self._reader.readexactly(wire.FRAME_HEAD.size)
        if self._first and head == _ERROR[: len(head)]:
            # A refusal is a line of text where the first frame would be.
            line = head + await self._reader.readline()
            self._over = True
            raise GuestRefused(wire.parse_error(line) or "no reason given")
        self._first = False
        self._head = wire.FRAME_HEAD.unpack(head)
        return self._head

    def _item(self, kind: int, n: int, payload: bytes) -> StreamItem:
        if kind in {wire.STDOUT, wire.STDERR}:
            return Output(STDOUT if kind == wire.STDOUT else STDERR, n, payload)
        if kind == wire.STDIN_OK:
            return StdinOk(n)
        if kind == wire.EOF and n in {1, 2}:
            return Eof(STDOUT if n == 1 else STDERR)
        if kind == wire.GAP:
            gap = msgspec.convert(parse_object(payload), _GapPayload)
            return Gap(gap.stream, n, gap.next)
        if kind == wire.EXIT:
            self._over = True
            self.exit = msgspec.convert(parse_object(payload), Exit)
            return self.exit
        raise ProtocolViolation(f"a frame of kind {kind} goes the other way")

    async def __aiter__(self) -> AsyncIterator[StreamItem]:
        """Iterate over all items up to and including `Exit`."""
        while (item := await self.read()) is not None:
            yield item

    async def write(self, seq: int, data: bytes) -> None:
        """Send one frame of input; `seq` counts 1, 2, 3 … from the start of the process.

        The guest drops frames that it has accepted already. Waits while the process reads too
        slowly.

        Raises:
            InvalidParameter: longer than a frame; see `pieces`.
            LinkClosed: the link has ended; the next `StdinOk` shows whether it arrived.
        """
        if len(data) > wire.MAX_STDIN_FRAME:
            raise InvalidParameter(
                f"data: {len(data)} bytes do not fit into a frame of {wire.MAX_STDIN_FRAME}",
                field="data",
            )
        await self._send(wire.STDIN, seq, data)

    async def write_eof(self, seq: int) -> None:
        """Close standard input; this uses up a sequence number. Output goes on."""
        await self._send(wire.EOF, seq, b"")

    async def _send(self, kind: int, n: int, data: bytes) -> None:
        try:
            self._writer.write(wire.encode_frame(kind, n, data))
            await self._writer.drain()
        except ConnectionError as error:
            raise LinkClosed("the link to the process has ended") from error

    async def aclose(self) -> None:
        """Close the link; the process goes on."""
        self._over = True
        await dialing.close(self._writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
