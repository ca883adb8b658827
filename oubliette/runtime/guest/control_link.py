"""Control link of the server to a container's guest.

One `ControlLink` per container. Requests may run concurrently; answers are matched by number.
Nothing is buffered without bound: events go to a callback as they arrive, streams are read on
demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from oubliette.errors import (
    DeadlineExceeded,
    InvalidParameter,
    OublietteError,
    ProtocolViolation,
    Unavailable,
)
from oubliette.failpoints import failpoint
from oubliette.incontainer import wire
from oubliette.json_values import parse_object
from oubliette.runtime.guest import dial as dialing
from oubliette.runtime.guest.errors import (
    CommandFailed,
    GuestAbsent,
    GuestRefused,
    GuestUnreachable,
    LinkClosed,
    PortRefused,
)
from oubliette.runtime.guest.handshake import handshake
from oubliette.runtime.guest.messages import CommandAnswer, GuestEvent, StartProcess
from oubliette.runtime.guest.process_stream import ProcessStream

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator, Callable, Sequence

    from oubliette.runtime.containers.base import Dial
    from oubliette.runtime.containers.unix_socket import Inode
    from oubliette.runtime.guest.messages import Hello

    Window = tuple[int, int]
    """Rows and columns of a terminal."""

CONNECT_TIMEOUT: Final = 10.0  # seconds for the connection, both proofs and `hello`
REQUEST_TIMEOUT: Final = 30.0  # seconds for an answer
MAX_UNREAD: Final = 64 * 1024  # bytes of a connection that wait here for their reader, halved
MAX_EVENTS: Final = 1000  # events that an iterator may leave unread before the link is closed

_encoder: Final = msgspec.json.Encoder()


class ControlLink:
    """Authenticated control connection to a container's guest, opened by `connect`."""

    def __init__(
        self,
        dial: Dial,
        reader: StreamReader,
        writer: StreamWriter,
        hello: Hello,
        *,
        inode: Inode | None,
        on_event: Callable[[GuestEvent], object] | None,
    ) -> None:
        self.hello = hello
        self._dial = dial
        self._inode = inode
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._listeners: set[asyncio.Queue[GuestEvent | None]] = set()
        self._waiting: dict[int, asyncio.Future[CommandAnswer]] = {}
        self._last_id = 0
        self._reason: OublietteError | None = None
        self._closed = asyncio.Event()
        self._task = asyncio.create_task(self._read(), name="control link")

    @classmethod
    async def connect(
        cls,
        dial: Dial,
        key: bytes,
        *,
        epoch: int,
        timeout: float = CONNECT_TIMEOUT,
        on_event: Callable[[GuestEvent], object] | None = None,
    ) -> ControlLink:
        """Open the control link: both sides prove that they hold `key`, the guest sends `hello`.

        Args:
            dial: the result of `ContainerRuntime.dial`.
            key: the container's 32 bytes, as passed to `start`.
            epoch: epoch of this server; a guest closes links with an older one.
            timeout: seconds for the whole handshake.
            on_event: called with every event, in order, from the loop; it must not block.

        Raises:
            GuestUnreachable: the socket does not listen, or does not answer in time.
            GuestImpostor: the peer does not hold the key; nothing was disclosed to it.
            GuestRefused: the guest refused the link (`stale epoch`, bad proof).
            VersionMismatch: the guest and this server have no common version.
            ProtocolViolation: the peer does not follow the protocol.
        """
        nonce = secrets.token_hex(wire.NONCE_HEX // 2)
        header = wire.ControlHeader(nonce).line()
        try:
            async with asyncio.timeout(timeout):
                inode = dialing.inode_at(dial)
                reader, writer = await dialing.open_link(
                    dial, header, wire.MAX_CONTROL_LINE, inode=inode
                )
                try:
                    hello = await handshake(reader, writer, key, nonce, epoch)
                except BaseException:
                    writer.close()
                    raise
        except TimeoutError as error:
            raise GuestUnreachable(f"the guest did not answer within {timeout:g} s") from error
        return cls(dial, reader, writer, hello, inode=inode, on_event=on_event)

    # ------------------------------------------------------------------ state

    @property
    def version(self) -> int:
        """Version of the protocol in use: the highest that both sides support."""
        return min(wire.PROTOCOL_MAX, self.hello.versions[1])

    @property
    def takes_bare(self) -> bool:
        """Whether the guest accepts clients without a secret."""
        return "bare" in self.hello.features

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def closed(self) -> OublietteError | None:
        """Wait until the link has ended; return the reason, or None if we closed it."""
        await self._closed.wait()
        return self._reason

    async def aclose(self) -> None:
        """Close the link. The guest, and the processes in the container, go on."""
        try:
            if not self._task.done():
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        finally:  # also when this is cancelled
            self._end(None)
            await dialing.close(self._writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _end(self, reason: OublietteError | None) -> None:
        if self._closed.is_set():
            return
        self._reason = reason
        self._closed.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(LinkClosed(str(reason or "the link was closed")))
        for queue in self._listeners:
            # One place is reserved for the end of the iteration: see `_publish`.
            queue.put_nowait(None)

    # ------------------------------------------------------------------ reading

    async def _read(self) -> None:
        reason: OublietteError
        try:
            while True:
                self._line(await dialing.read_line(self._reader))
        except (msgspec.MsgspecError, InvalidParameter) as error:
            reason = ProtocolViolation(f"the guest sent what is no message of ours: {error}")
        except OublietteError as error:
            reason = error
        except Exception as error:  # of `on_event`: a lost event is worse than a lost link
            reason = LinkClosed(f"an event of the guest could not be taken: {error!r}")
        self._end(reason)
        self._writer.close()

    def _line(self, line: bytes) -> None:
        failpoint("host.line")
        # Events and answers are distinguished by their field, so that both may get more fields.
        message = parse_object(line)
        if "event" in message:
            self._publish(msgspec.convert(message, GuestEvent))
            return
        answer = msgspec.convert(message, CommandAnswer)
        future = self._waiting.pop(answer.id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _publish(self, event: GuestEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
        for queue in self._listeners:
            if queue.qsize() >= MAX_EVENTS:
                raise ProtocolViolation(f"{MAX_EVENTS} events of the guest were left unread")
            queue.put_nowait(event)

    async def events(self) -> AsyncIterator[GuestEvent]:
        """Iterate over events from now on, until the link ends. A slow reader loses the link."""
        queue: asyncio.Queue[GuestEvent | None] = asyncio.Queue(MAX_EVENTS + 1)
        if self._closed.is_set():
            return
        self._listeners.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    # ------------------------------------------------------------------ verbs

    async def request(
        self, verb: str, fields: dict[str, Any], *, timeout: float = REQUEST_TIMEOUT
    ) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            CommandFailed: the guest answered with an error.
            LinkClosed: the link ended first; the outcome is unknown.
            DeadlineExceeded: no answer in time.
        """
        if self._closed.is_set():
            raise LinkClosed(str(self._reason or "the link was closed"))
        self._last_id += 1
        number = self._last_id
        future: asyncio.Future[CommandAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        line = _encoder.encode({"id": number, "verb": verb, **fields}) + b"\n"
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(line)
                with contextlib.suppress(ConnectionError):  # the reader has the reason
                    await self._writer.drain()
                answer = await future
        except TimeoutError as error:
            raise DeadlineExceeded(f"{verb}: no answer within {timeout:g} s") from error
        finally:
            self._waiting.pop(number, None)
        if answer.error is not None:
            kind = str(answer.error.get("code", "error"))
            raise CommandFailed(verb, kind, str(answer.error.get("message", kind)))
        return answer.ok or {}

    async def start(self, process: StartProcess, window: Window | None = None) -> int:
        """Start a process, or find the one that has this id already; return its pid inside.

        With a `window` it gets a terminal of that size, and ends with its attached link.

        Raises:
            Unavailable: it is to end with its link, and the guest is of a version that cannot.
            CommandFailed: `kind` is `not_found` (the message names the program), `bad_cwd`,
                `permission`, `invalid` (the message names the field) or `limit`.
        """
        fields = msgspec.to_builtins(process)
        if process.gid is None and process.uid is not None:
            fields["gid"] = process.uid
        if (window or process.until_detached) and self.version < wire.TERMINALS_SINCE:
            raise Unavailable(
                "this container was started by an earlier release, which attaches no command",
                hint="restart the container: container_stop, then try again",
            )
        if window is None:
            return int((await self.request("start", fields))["pid"])
        rows, columns = window
        return int((await self.request("pty", {**fields, "rows": rows, "cols": columns}))["pid"])

    async def resize(self, proc: str, window: Window) -> None:
        """Set the size of a process's terminal."""
        rows, columns = window
        await self.request("resize", {"proc": proc, "rows": rows, "cols": columns})

    async def signal(
        self,
        proc: str,
        number: int | str,
        *,
        tree: bool = True,
        timeout: float = REQUEST_TIMEOUT,
    ) -> bool:
        """Signal a process, with `tree` all of its group and session; return whether it existed."""
        fields = {"proc": proc, "signal": number, "tree": tree}
        answer = await self.request("signal", fields, timeout=timeout)
        return bool(answer.get("delivered"))

    async def expect(self, session: str, project: str, *, secret: str, depth: int) -> None:
        """Accept the client of `session` that has `secret`; replaces an earlier announcement."""
        fields = {
            "session": session,
            "project": project,
            "digest": wire.digest(secret),
            "depth": depth,
        }
        await self.request("expect", fields)

    async def unexpect(self, session: str) -> None:
        """Refuse new clients of `session` and close its links."""
        await self.request("unexpect", {"session": session})

    async def ticket(self, purpose: str, count: int = 1) -> Sequence[str]:
        """Return one-time tickets for `upstream`, `bare`, `attach` or `connect`, valid for 30 s."""
        answer = await self.request("ticket", {"purpose": purpose, "count": count})
        return [str(ticket) for ticket in answer["tickets"]]

    async def ack(self, proc: str, out: int, err: int) -> None:
        """Acknowledge output before these offsets: its events are committed."""
        await self.request("ack", {"proc": proc, "out": out, "err": err})

    async def forget(self, proc: str) -> None:
        """Drop a process that has ended, its unread output included."""
        await self.request("forget", {"proc": proc})

    async def end(self, proc: str, *, timeout: float = REQUEST_TIMEOUT) -> None:
        """Kill a process and its group, and drop it.

        `timeout`: seconds for a guest that may be paused to handle the signal.
        """
        with contextlib.suppress(CommandFailed):  # it has ended already
            await self.signal(proc, "KILL", timeout=timeout)
            await self.forget(proc)

    async def stats(self) -> dict[str, Any]:
        """The guest's resources: `rss procs links spool_bytes uptime_seconds` and more."""
        return await self.request("stats", {})

    async def drain(self) -> None:
        """End all processes (TERM, 3 s, KILL), then the guest itself."""
        with contextlib.suppress(LinkClosed):  # it may exit before its answer is read
            await self.request("drain", {})

    # ------------------------------------------------------------------ data links

    async def _opened(self, header: bytes, limit: int) -> tuple[StreamReader, StreamWriter]:
        """Connect and send `header`; if the socket was removed, the guest makes it again.

        The socket has to be the one that answered the handshake, or the one that the guest made.

        Raises:
            GuestUnreachable: there is none, and none can be made: then this link ends too, as its
                container is of no use any more.
        """
        try:
            return await dialing.open_link(self._dial, header, limit, inode=self._inode)
        except GuestAbsent as absent:
            try:
                made = await self.request("listen", {})
                if self._inode is not None:
                    self._inode = (self._inode[0], int(made["inode"]))
                return await dialing.open_link(self._dial, header, limit, inode=self._inode)
            except (CommandFailed, GuestUnreachable) as error:  # its folder was removed, or moved
                lost = GuestUnreachable(f"{absent}; {error}")
                self._end(lost)
                self._writer.close()
                raise lost from error

    async def attach(self, proc: str, out: int = 0, err: int = 0) -> ProcessStream:
        """Open a process's output from these offsets on, and its input; evicts an older attach.

        Raises:
            GuestRefused: (from the stream's first read) the process is unknown.
        """
        ticket = (await self.ticket("attach"))[0]
        header = wire.Attach(proc, out, err, ticket, self.version).line()
        reader, writer = await self._opened(header, wire.MAX_FRAME)
        return ProcessStream(reader, writer)

    async def upstream(
        self,
        session: str,
        project: str,
        depth: int,
        *,
        bare: bool = False,
        limit: int = wire.MAX_SESSION_LINE,
    ) -> tuple[StreamReader, StreamWriter]:
        """Open the upstream of a session's pair; `bare`: for a client without a secret.

        A refusal arrives as its first line: see `wire.parse_error`. `limit` bounds a line for
        `StreamReader.readline`; the reader stops reading the socket at twice that size.
        """
        ticket = (await self.ticket("bare" if bare else "upstream"))[0]
        header = wire.Upstream(session, project, depth, ticket).line()
        return await self._opened(header, limit)

    async def connect_to(self, port: int) -> tuple[StreamReader, StreamWriter]:
        """Open a TCP connection to `port` on the loopback interface of the container.

        Bytes pass unchanged; what is not read stays with the guest, 256 KiB at most, and then with
        the program. The caller closes the writer.

        Raises:
            PortRefused: nothing listens there, or it does not accept.
            Unavailable: the guest is of an earlier release, which cannot do this.
            GuestUnreachable, LinkClosed, CommandFailed, DeadlineExceeded: as everywhere.
        """
        if "connect" not in self.hello.features:
            raise Unavailable(
                "this container was started by an earlier release, which opens no ports",
                hint="container_stop, then try again",
            )
        ticket = (await self.ticket("connect"))[0]
        header = wire.Connect(port, ticket, self.version).line()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                reader, writer = await self._opened(header, MAX_UNREAD)
                try:
                    await dialing.read_line(reader)
                except BaseException:
                    writer.close()
                    raise
        except GuestRefused as error:
            raise PortRefused(error.reason) from error
        except TimeoutError as error:
            raise GuestUnreachable(f"no answer within {CONNECT_TIMEOUT:g} s") from error
        return reader, writer
