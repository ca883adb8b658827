"""A command in a container whose streams a client has, through a link that is attached to it.

The slower side sets the pace: what a client does not read stays in the container, and blocks the
command. The guest ends a command whose link closes, whichever side has closed it.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette import ids
from oubliette.actors.container.guest_connection import GetGuestConnection
from oubliette.errors import ContainerLost, DeadlineExceeded, InvalidParameter, RuntimeFailure
from oubliette.incontainer import wire
from oubliette.runtime.guest import CommandFailed, Exit, LinkClosed, Output, StartProcess

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.kit import Ref
    from oubliette.runtime.guest import ProcessStream

LINK_SECONDS: Final = 30.0  # for the control link to be open
IDLE_SECONDS: Final = 3600.0
"""Time without a byte in either direction after which a command is ended."""
FAIL_SECONDS: Final = 5.0  # for a client to take the reason
PIECE: Final = 64 * 1024  # bytes: of a client's frame, and of what waits in the container
TERM: Final = "xterm-256color"


class AttachedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command for `run_attached`; paths are as documented, absolute."""

    argv: tuple[str, ...]
    workspace: str
    working_dir: str
    env: dict[str, str]
    stdin: bool
    window: tuple[int, int] | None = None
    """Rows and columns of its terminal; None: it gets none."""


class CommandClient(ABC):
    """The client of an attached command: frames of `incontainer/wire.py`, cut anywhere."""

    begun = False

    @abstractmethod
    async def read(self) -> bytes:
        """Return the next bytes; empty: the client is gone."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the client does not take them.

        Raises:
            ConnectionError: the client is gone.
        """

    @abstractmethod
    async def answer(self, answer: dict[str, Any]) -> None:
        """Answer the request, before any frame."""

    async def begin(self) -> None:
        """Answer that the command runs: frames follow."""
        self.begun = True
        await self.answer({"ok": {}})

    async def fail(self, error: dict[str, Any]) -> None:
        """Send the reason why the command does not run, or why it was ended.

        Raises:
            ConnectionError: the client is gone, or takes nothing.
        """
        try:
            async with asyncio.timeout(FAIL_SECONDS):
                if self.begun:
                    await self.write(wire.encode_frame(wire.EXIT, 0, wire.encode_json(error)))
                else:
                    await self.answer(error)
        except TimeoutError as late:
            raise ConnectionAbortedError("the client takes nothing") from late


async def run_at(socket: Ref, command: AttachedCommand, client: CommandClient) -> Exit | None:
    """Run a command in the container of this SocketActor, as `run_attached` does."""
    return await run_attached(await socket.ask(GetGuestConnection()), command, client)


async def run_attached(
    guest: GuestConnection, command: AttachedCommand, client: CommandClient
) -> Exit | None:
    """Run a command until it ends; its last frame is EXIT. None: the client is gone.

    Raises:
        CommandFailed: it cannot be started; names the program or the folder.
        ContainerLost: there is no container, or it ended first.
        DeadlineExceeded: no byte went in either direction for `IDLE_SECONDS`.
        InvalidParameter: the client sends something else than its frames.
        Unavailable: the guest is of an earlier release.
    """
    link = await guest.wait(LINK_SECONDS)
    if guest.info is None:
        raise RuntimeFailure("the container is not known yet", hint="try again in a moment")
    inside = guest.info.inside
    proc = ids.new_id(ids.PROCESS)
    process = StartProcess(
        proc=proc,
        argv=command.argv,
        env={
            **inside.env,
            "HOME": inside.path("/tmp"),  # noqa: S108 -- inside
            "OUBLIETTE_WORKSPACE": inside.path(command.workspace),
            **command.env,
        },
        cwd=inside.path(command.working_dir),
        uid=inside.uid,
        gid=inside.uid,
        stdin=command.stdin,
        spool_bytes=PIECE,
        until_detached=True,
    )
    await link.start(process, command.window)
    try:
        async with await link.attach(proc) as stream:
            await client.begin()
            has_terminal = command.window is not None
            exchange = _Exchange(guest, proc, stream, client, has_terminal=has_terminal)
            return await exchange.run()
    except ConnectionError:
        return None
    except LinkClosed as error:
        raise ContainerLost("the container has ended, and the command with it") from error


class _Exchange:
    """The frames of one command, both ways at once."""

    def __init__(
        self,
        guest: GuestConnection,
        proc: str,
        stream: ProcessStream,
        client: CommandClient,
        *,
        has_terminal: bool,
    ) -> None:
        self._guest = guest
        self._proc = proc
        self._stream = stream
        self._client = client
        self._has_terminal = has_terminal
        self._sequence = 0

    async def run(self) -> Exit | None:
        try:
            async with asyncio.timeout(IDLE_SECONDS) as self._idle:
                await until_either(self._download(), self._upload())
        except TimeoutError:
            if not self._idle.expired():
                raise
            raise DeadlineExceeded(
                f"no input and no output for {IDLE_SECONDS:g} s, so the command was ended"
            ) from None
        return self._stream.exit

    def _is_used(self) -> None:
        self._idle.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)

    async def _download(self) -> None:
        async for item in self._stream:
            self._is_used()
            if isinstance(item, Output):
                frame = wire.encode_frame(item.stream, item.offset, item.data)
                await self._client.write(frame)
            elif isinstance(item, Exit):
                ended = wire.encode_json({"code": item.code, "signal": item.signal})
                await self._client.write(wire.encode_frame(wire.EXIT, 0, ended))

    async def _upload(self) -> None:
        decoder = wire.FrameDecoder(PIECE)
        while data := await self._client.read():
            self._is_used()
            try:
                frames = decoder.feed(data)
            except wire.WireError as error:
                raise InvalidParameter(f"this is no frame of a client: {error}") from error
            for frame in frames:
                await self._take(frame)

    async def _take(self, frame: wire.Frame) -> None:
        self._sequence += frame.kind in {wire.STDIN, wire.EOF}
        if frame.kind in {wire.STDIN, wire.EOF}:
            # A command that has ended reads no more; what it wrote, and its exit, are still read
            with contextlib.suppress(LinkClosed):
                if frame.kind == wire.STDIN:
                    await self._stream.write(self._sequence, frame.payload)
                else:
                    await self._stream.write_eof(self._sequence)
        elif frame.kind == wire.RESIZE and self._has_terminal:
            await self._resize(frame.n >> 16, frame.n & 0xFFFF)
        else:
            raise InvalidParameter(f"a frame of kind {frame.kind} is not the client's to send")

    async def _resize(self, rows: int, columns: int) -> None:
        if not (1 <= rows <= wire.MAX_WINDOW and 1 <= columns <= wire.MAX_WINDOW):
            raise InvalidParameter(
                f"rows and columns of a terminal are numbers from 1 to {wire.MAX_WINDOW}",
                field="rows",
            )
        link = self._guest.current
        if link is not None:
            # It has just ended, or the next link is not open yet
            with contextlib.suppress(CommandFailed, LinkClosed):
                await link.resize(self._proc, (rows, columns))


async def until_either(*works: Coroutine[Any, Any, None]) -> None:
    """Do these at once until one of them has ended, then end the others.

    Raises:
        Exception: the error of one of them.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()
