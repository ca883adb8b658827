"""Streams of bytes between the machine that serves a client and the home of its project.

The machine of the client opens a stream, asks for each piece, and asks with each piece: so the
slower side sets the pace, and a few pieces of each direction are in memory. A stream ends when the
client's machine stops it, and when that machine is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import structlog

from oubliette.errors import InvalidParameter, OublietteError, ProjectMoves
from oubliette.ids import new_uuid
from oubliette.kit import Actor, ActorDead, AskTimeout, Down, LocalMessage, Message, Reply, handles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from oubliette.kit import Deferred, Ref
    from oubliette.tools.home_nodes import HomeNodes

STREAMS: Final = "streams"
"""Name of the actor on each machine that opens streams for the others."""
OPEN_SECONDS: Final = 10.0
MOST_SECONDS: Final = 24 * 3600.0
"""Deadline of a piece. What is at the other end has deadlines of its own, and the end of its
machine is noticed at once."""
AHEAD: Final = 4
"""Pieces that wait for their reader; it gets all of them at once."""

log = structlog.get_logger("oubliette.tools")


class LivesElsewhere(ProjectMoves):
    """The project has another home than the asking machine believes; nothing was done."""

    code = "lives_elsewhere"


class OpenStream(Message, Reply[None]):
    """To the actor `streams` of another machine: begin a stream."""

    label: str
    """Last part of the name of the actor that has the stream."""
    kind: str
    wanted: bytes
    """Its other end; the form depends on the kind."""
    front: str
    """Machine that serves the client."""


class ReadStream(Message, Reply[bytes]):
    """To a stream: the next bytes for the client; empty: there are no more."""


class WriteStream(Message, Reply[None]):
    """To a stream: the next bytes of the client; answered once there is room for more."""

    data: bytes
    last: bool = False


class _WorkEnded(LocalMessage):
    """The work of a stream has ended, or one of its requests has its answer."""


class _LastPiece(NamedTuple):
    """In the place of a piece: there are no more, or none that can be had."""

    error: OublietteError | None


class StreamEnd:
    """The end of a stream at the home of its project."""

    def __init__(self) -> None:
        self.for_client: asyncio.Queue[bytes | _LastPiece] = asyncio.Queue(AHEAD)
        self.of_client: asyncio.Queue[WriteStream] = asyncio.Queue(1)

    async def send(self, data: bytes) -> None:
        """Send bytes to the client; wait while it does not take them."""
        if data:
            await self.for_client.put(data)

    async def receive(self) -> WriteStream:
        """Return the next bytes of the client; wait as long as it sends none."""
        return await self.of_client.get()

    async def next_for_client(self) -> bytes:
        """Return all that waits for the client, and at least one piece; empty: its end."""
        pieces: list[bytes] = []
        piece = await self.for_client.get()
        while not isinstance(piece, _LastPiece):
            pieces.append(piece)
            if self.for_client.empty():
                return b"".join(pieces)
            piece = self.for_client.get_nowait()
        self.for_client.put_nowait(piece)  # for the next request
        if not pieces and piece.error is not None:
            raise piece.error
        return b"".join(pieces)


Work = Callable[[bytes, StreamEnd], Awaitable[None]]
"""Serves a stream of one kind; it is cancelled with the stream. The other machine takes
its first piece as a sign that it has begun."""


class HomeStreamsActor(Actor):
    """Opens streams for the other machines. Its name must be `streams`.

    Args:
        works: Kind → what serves its streams.
        nodes: The machines.
    """

    mailbox_size: ClassVar[int] = 10_000

    def __init__(self, works: Mapping[str, Work], nodes: HomeNodes) -> None:
        super().__init__()
        self._works = works
        self._nodes = nodes

    @handles(OpenStream)
    def _open(self, message: OpenStream) -> None:
        if self.defer().done:  # given up meanwhile: no request to end it comes any more
            return
        work = self._works.get(message.kind)
        if work is None:
            raise InvalidParameter(f"there are no streams of the kind {message.kind}", field="kind")
        front = self._nodes.ref(message.front, STREAMS)
        name = f"{STREAMS}/{message.label}"
        self.spawn(HomeStreamActor, work, message.wanted, front, name=name)
        self.defer().set(None)


class HomeStreamActor(Actor):
    """One stream; it ends when the other machine has no use for it any more."""

    def __init__(self, work: Work, wanted: bytes, front: Ref) -> None:
        super().__init__()
        self._work = work
        self._wanted = wanted
        self._front = front
        self._end = StreamEnd()

    def on_start(self) -> None:
        self.watch(self._front)
        self._beside(self._run())

    def _beside(self, work: Awaitable[None]) -> None:
        self.pipe_to_self(work, lambda _: _WorkEnded(), lambda _: _WorkEnded())

    async def _run(self) -> None:
        error = None
        try:
            await self._work(self._wanted, self._end)
        except OublietteError as failed:
            error = failed
        except Exception:
            log.exception("stream to another machine failed", name=self.name)
            error = OublietteError("internal error; see the log of the server at its home")
        await self._end.for_client.put(_LastPiece(error=error))

    @handles(ReadStream)
    def _read(self, _: ReadStream) -> None:
        self._beside(self._hand_out(self.defer()))

    async def _hand_out(self, answer: Deferred) -> None:
        try:
            answer.set(await self._end.next_for_client())
        except OublietteError as error:
            answer.set_error(error)

    @handles(WriteStream)
    def _write(self, message: WriteStream) -> None:
        self._beside(self._take_in(message, self.defer()))

    async def _take_in(self, message: WriteStream, answer: Deferred) -> None:
        await self._end.of_client.put(message)
        answer.set(None)

    @handles(_WorkEnded)
    def _ended(self, _: _WorkEnded) -> None:
        pass

    @handles(Down)
    def _front_down(self, _: Down) -> None:
        self.stop()


class HomeStream:
    """The end of a stream on the machine that serves the client."""

    def __init__(self, ref: Ref) -> None:
        self._ref = ref

    async def read(self) -> bytes:
        """Return the next bytes; empty: there are no more.

        Raises:
            OublietteError: the stream has failed, or its machine is lost.
        """
        return await self._ref.ask(ReadStream(), MOST_SECONDS)

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send bytes; complete when there is room for more.

        Raises:
            OublietteError: the machine is lost.
        """
        await self._ref.ask(WriteStream(data=data, last=last), MOST_SECONDS)


@contextlib.asynccontextmanager
async def open_at_home(
    nodes: HomeNodes, node: str, kind: str, wanted: bytes
) -> AsyncGenerator[HomeStream]:
    """Have a stream to a machine for as long as the block.

    Raises:
        ActorDead: the machine cannot be reached.
        AskTimeout: it does not answer.
    """
    label = new_uuid()
    ref = nodes.ref(node, f"{STREAMS}/{label}")
    opening = OpenStream(label=label, kind=kind, wanted=wanted, front=nodes.name)
    try:
        await nodes.ref(node, STREAMS).ask(opening, OPEN_SECONDS)
        yield HomeStream(ref)
    finally:
        with contextlib.suppress(
            ActorDead, AskTimeout
        ):  # its machine ends it when it misses this one
            await ref.stop()
