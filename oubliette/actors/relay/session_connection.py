"""Link of one session: JSON-RPC lines of its agent's client, in both directions.

It reads one line, passes it on and reads the next, so that calls run concurrently; it writes the
session's answers. It does not interpret the methods, except that a cancellation passes requests
that wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import structlog
from tenacity import wait_exponential_jitter

from oubliette.actors.session.messages import (
    LinkNotify,
    LinkProgress,
    LinkReady,
    LinkReply,
    LinkRequest,
    LinkRequestOver,
    OpenLink,
)
from oubliette.errors import InvalidParameter
from oubliette.incontainer import wire
from oubliette.json_values import check_values, is_fit, parse
from oubliette.kit import Actor, ActorDead, Message, handles
from oubliette.kit.fair_loop import working_for
from oubliette.kit.retry import backoff_delay

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Callable

    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.context import ActorContext

log = structlog.get_logger(__name__)

WAIT_FOR_HOST: Final = 60.0  # seconds; then requested again
WRITE_LIMIT: Final = 4 * 1024 * 1024  # unread bytes at which a client's link is closed
MAX_IN_WORK: Final = 64
"""Requests of one link that wait for their answers; the next is begun when one of them has it."""
MAX_AHEAD: Final = 256
"""Further ones that are read: the cancellation of a call may be behind them."""
PORTION: Final = 4  # lines that are handled before others have their turn
LINES_OF_A_CALL: Final = 2
"""Lines that a link may send for each call that a key may make: the call, and its cancellation."""
_BACKOFF: Final = wait_exponential_jitter(multiplier=0.01, max=2.0, jitter=0.02)
_CHUNK: Final = 256 * 1024
_CANCELLED: Final = "notifications/cancelled"


class _Request(msgspec.Struct):
    """The id of a request whose values are not decoded."""

    id: int | str | None = None


_request = msgspec.json.Decoder(_Request).decode


class _Opened(Message):
    generation: int


class _Closed(Message):
    generation: int
    reason: str


class _Open(Message):
    pass


class SessionConnectionActor(Actor):
    """Upstream of one session's link, for its client or, if `bare`, one without a secret."""

    mailbox_size = 10_000

    def __init__(
        self, context: ActorContext, guest: GuestConnection, spec: OpenLink, *, bare: bool = False
    ) -> None:
        super().__init__()
        self._context = context
        self._guest = guest
        self._spec = spec
        self._bare = bare
        self._generation = 0
        self._writer: StreamWriter | None = None
        self._failures = 0
        self._in_work = 0
        """Requests that the session has, also of earlier connections."""
        self._ahead: deque[tuple[LinkRequest, int]] = deque()
        """Requests of this connection that wait for room there, and the bytes of their lines."""
        self._bytes_ahead = 0
        self._sending = False
        """Whether one of them is on its way to the session."""
        self._moved = asyncio.Event()
        callers = context.config.callers
        self._line_seconds = 1 / (LINES_OF_A_CALL * callers.calls_per_second)
        self._burst_seconds = LINES_OF_A_CALL * callers.calls_burst * self._line_seconds
        self._paid_until = 0.0
        """Monotonic second up to which the lines so far have used the link's rate."""

    async def on_start(self) -> None:
        working_for.set(self._spec.principal)
        self._begin()

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        del reason, error
        self._drop()

    def _drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()

    @handles(_Open)
    def _begin(self, _: _Open | None = None) -> None:
        self._generation += 1
        generation = self._generation
        self.pipe_to_self(
            self._serve(generation),
            lambda reason: _Closed(generation=generation, reason=reason),
            lambda error: _Closed(
                generation=generation,
                reason=str(error) or repr(error),
            ),
        )

    async def _serve(self, generation: int) -> str:
        """Connect, notify this actor, then read until the link ends."""
        spec = self._spec
        host = await self._guest.wait(WAIT_FOR_HOST, next_container=True)
        if self._bare and not host.takes_bare:  # the guest was started under another configuration
            await host.closed()
            return "the host takes no bare clients"
        await host.expect(spec.session_id, spec.project_id, secret=spec.secret, depth=spec.depth)
        reader, writer = await host.upstream(
            spec.session_id, spec.project_id, spec.depth, bare=self._bare
        )
        if generation != self._generation or not self.ref.is_alive():
            writer.transport.abort()
            return "superseded"
        self._drop()
        self._writer = writer
        self.ref.tell(_Opened(generation=generation))
        try:
            return await self._read(reader, generation)
        finally:
            writer.transport.abort()

    async def _read(self, reader: StreamReader, generation: int) -> str:
        self._ahead.clear()
        self._bytes_ahead = 0
        self._sending = False
        work = [
            asyncio.ensure_future(each)
            for each in (self._read_lines(reader, generation), self._pass_on())
        ]
        try:
            ended, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            return ended.pop().result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _read_lines(self, reader: StreamReader, generation: int) -> str:
        lines = wire.LineReader(wire.MAX_SESSION_LINE)
        while chunk := await reader.read(_CHUNK):
            for number, line in enumerate(lines.feed(chunk)):
                if number % PORTION == PORTION - 1:
                    await asyncio.sleep(0)
                await self._in_rate()
                if isinstance(line, wire.OversizeLine):
                    self._send_error(line.request_id, -32600, f"Invalid Request: {line}")
                    continue
                refusal = wire.parse_error(line)
                if refusal is not None:
                    return f"the relay refused the link: {refusal}"
                for request in self._requests(line, generation):
                    if not await self._cancels(request):
                        await self._until(self._may_read_ahead)
                        self._ahead.append((request, len(line)))
                        self._bytes_ahead += len(line)
                        self._moved.set()
        await self._until(lambda: not self._ahead and not self._sending)
        return "the agent's client closed the link"

    async def _in_rate(self) -> None:
        """Wait until the link may send one more line: most of its requests need no key."""
        now = self.clock.monotonic()
        self._paid_until = max(self._paid_until, now) + self._line_seconds
        wait = self._paid_until - self._burst_seconds - now
        if wait > 0:
            over = asyncio.Event()
            timer = self.clock.call_later(wait, over.set)
            try:
                await over.wait()
            finally:
                timer.cancel()

    def _may_read_ahead(self) -> bool:
        # Each line may be a large one.
        return len(self._ahead) < MAX_AHEAD and self._bytes_ahead < wire.MAX_SESSION_LINE

    async def _cancels(self, request: LinkRequest) -> bool:
        """Pass on a cancellation at once; return whether it is one, and there was room for it.

        An agent that is interrupted cancels all its calls, and perhaps none of them gets an answer.
        """
        if request.method != _CANCELLED or self._in_work >= MAX_IN_WORK + MAX_AHEAD:
            return False
        target = request.params.get("requestId")
        for each in [each for each in self._ahead if each[0].id == target is not None]:
            self._ahead.remove(each)
            self._bytes_ahead -= each[1]
            self._moved.set()
        await self._send_on(request)
        return True

    async def _pass_on(self) -> str:
        """Pass on requests in their order, each when there is room for it."""
        try:
            while True:
                await self._until(lambda: bool(self._ahead) and self._in_work < MAX_IN_WORK)
                self._sending = True
                request, size = self._ahead.popleft()
                self._bytes_ahead -= size
                await self._send_on(request)
                self._sending = False
                self._moved.set()
        except ActorDead:
            return "the session's actor is gone"

    async def _send_on(self, request: LinkRequest) -> None:
        self._in_work += 1
        try:
            await self.system.ref(self._spec.session).send(request)
        except BaseException:  # it has no answer
            self._in_work -= 1
            raise

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._moved.clear()
            await self._moved.wait()

    def _requests(self, line: bytes, generation: int) -> list[LinkRequest]:
        try:
            message: Any = parse(line, "params")
        except InvalidParameter as error:
            if error.field is None:
                self._send_error(None, -32700, "Parse error: the line is not JSON")
            else:
                self._send_error(_id_in(line), error.jsonrpc_code, f"Invalid params: {error}")
            return []
        if not isinstance(message, dict):
            self._send_error(None, -32600, "Invalid Request: not an object")
            return []
        fields = cast("dict[str, Any]", message)
        method, id_ = fields.get("method"), fields.get("id")
        if method is None and ("result" in fields or "error" in fields):
            return []  # an answer to a request that we never make
        is_id = isinstance(id_, int | str | None) and not isinstance(id_, bool)
        if not is_id or not is_fit({"id": id_}):
            self._send_error(None, -32600, "Invalid Request: id must be text or a 64-bit number")
            return []
        if not isinstance(method, str):
            self._send_error(id_, -32600, "Invalid Request: method must be a string")
            return []
        params: Any = fields.get("params")
        if params is None:
            params = {}
        if not isinstance(params, dict):
            self._send_error(id_, -32602, "Invalid params: must be an object")
            return []
        try:
            # The arguments of a tool are one level below, and as deep as over HTTP.
            check_values(cast("dict[str, Any]", params), "params", envelope=1)
        except InvalidParameter as error:
            self._send_error(id_, error.jsonrpc_code, f"Invalid params: {error}")
            return []
        return [
            LinkRequest(
                link=self.name,
                generation=generation,
                id=id_,
                method=method,
                params=cast("dict[str, Any]", params),
                bare=self._bare,
            )
        ]

    @handles(_Opened)
    def _opened(self, message: _Opened) -> None:
        if message.generation == self._generation:
            self._failures = 0
            session = self.system.ref(self._spec.session)
            if session.is_alive():  # it may have ended meanwhile
                session.tell(
                    LinkReady(link=self.name, generation=self._generation, bare=self._bare)
                )

    @handles(_Closed)
    def _closed(self, message: _Closed) -> None:
        if message.generation != self._generation:
            return
        self._drop()
        self._failures += 1
        self.after(backoff_delay(_BACKOFF, self._failures), _Open())

    @handles(LinkReply, at_once=True)
    def _answer(self, message: LinkReply) -> None:
        self._request_over()
        if message.generation != self._generation or message.id is None:
            return
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
        if message.error is not None:
            body["error"] = message.error
        else:
            body["result"] = message.result
        self._send(body)

    @handles(LinkRequestOver)
    def _request_over(self, _: LinkRequestOver | None = None) -> None:
        self._in_work = max(0, self._in_work - 1)  # a predecessor of this actor had it
        self._moved.set()

    @handles(LinkNotify)
    def _notify(self, message: LinkNotify) -> None:
        body: dict[str, Any] = {"jsonrpc": "2.0", "method": message.method}
        if message.legacy_type:
            body["type"] = message.method
        body["params"] = message.params
        self._send(body)

    @handles(LinkProgress)
    def _progress(self, message: LinkProgress) -> None:
        if message.generation != self._generation or message.id is None:
            return
        if not self._bare:  # a client of the first form does not know it
            params = {"id": message.id, "message": message.message}
            self._send({"jsonrpc": "2.0", "method": "progress", "params": params})

    def _send_error(self, id_: int | str | None, code: int, text: str) -> None:
        self._send({"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": text}})

    def _send(self, body: dict[str, Any]) -> None:
        writer = self._writer
        if writer is None:
            return
        writer.write(msgspec.json.encode(body) + b"\n")
        if writer.transport.get_write_buffer_size() > WRITE_LIMIT + wire.MAX_SESSION_LINE:
            log.warning("a client takes no answers; its link is cut", session=self._spec.session_id)
            self._drop()


def _id_in(line: bytes) -> int | str | None:
    """Return the id in a line that is not decoded otherwise; None if it has no valid one."""
    try:
        id_ = _request(line).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return id_ if is_fit({"id": id_}) else None
