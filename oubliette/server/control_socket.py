"""ControlSocket, through which the command line reaches a running server: `<home>/control.sock`.

Messages are JSON objects, one per line. `{"id", "verb": "call", "tool", "arguments"}` calls a tool
with all rights; with `"progress": true`, lines `{"id", "progress"}` report its progress. `{"id",
"verb": "status"}` returns the status of the server, and `{"id", "verb": "on_stop", "agents"}` sets
what becomes of agents at its end (keep, end). The answer is `{"id", "ok": {…}}` or `{"id", "error":
{code, message, hint, field}}`. After `{"id", "verb": "exec", "arguments"}` the link carries the
frames of a command, and closes with it (docs/relay-protocol.md). The socket has mode 0600 in a 0700
folder, and the peer's user id is checked in addition: every user who passes could read the database
anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import structlog

from oubliette.actors.container.attached_command import FAIL_SECONDS, PIECE, CommandClient
from oubliette.errors import ConfigError, HomeInUse, InvalidParameter, NotFound, OublietteError
from oubliette.json_values import check_values, is_fit, parse
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.files.home import CONTROL_SOCKET, HomeLock
from oubliette.runtime.files.removal_watch import RemovalWatch
from oubliette.tools.registry import call
from oubliette.tools.schema.tool_result import failure
from oubliette.tools.spec import OPERATOR

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from oubliette.tools.attached_commands import AttachedCommands
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MAX_LINE: Final = 8 * 1024 * 1024  # bytes
MAX_LINKS: Final = 32
MAX_UNREAD: Final = 64 * 1024  # bytes of unread answers above which no progress is sent
MAX_SOCKET_PATH: Final = 103  # bytes; see containers/folders.py
LOCK_SECONDS: Final = 10.0
"""Time for a command that looks whether a server runs, or for one that ends, to release a lock."""
IDLE_SECONDS: Final = 900.0
"""Seconds after which a silent link is closed; longer than any wait of a tool."""
_log = structlog.get_logger("oubliette.control_socket")


@contextlib.contextmanager
def socket_path(home: Path) -> Generator[str]:
    """A path of `<home>/control.sock` that is short enough to bind or connect to.

    Raises:
        ConfigError: there is none on this system.
    """
    path = home / CONTROL_SOCKET
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        yield str(path)
        return
    if sys.platform != "linux":
        raise ConfigError(
            f"{path}: longer than {MAX_SOCKET_PATH} bytes", hint="choose a shorter --home"
        )
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{CONTROL_SOCKET}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def listening(home: Path) -> Generator[socket.socket]:
    """Listen at `<home>/control.sock`; connections wait until a `ControlSocket` serves them.

    Only the holder of the home's lock may call it, because it replaces a stale socket. Commands
    that are given while the server starts wait at this socket.

    Raises:
        ConfigError: the socket cannot be created.
    """
    listener = _bound(home)
    try:
        yield listener
    finally:
        listener.close()
        (home / CONTROL_SOCKET).unlink(missing_ok=True)


def _bound(home: Path) -> socket.socket:
    place = home / CONTROL_SOCKET
    try:
        place.unlink(missing_ok=True)
        with socket_path(home) as path:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # No one can connect between bind and chmod: that is what listen allows.
                listener.bind(path)
                place.chmod(0o600)
                listener.listen(MAX_LINKS)
                listener.setblocking(False)
            except BaseException:
                listener.close()
                raise
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be made: {error.strerror}",
            hint="choose another --home, on a local file system",
        ) from error
    return listener


class _HeldBriefly(Exception):
    """A process that serves nothing holds the home's lock: a command, or a server that stops."""


async def locked(home: Path) -> HomeLock:
    """Take the lock of a home; wait for one that a command or a server that stops still holds.

    Raises:
        HomeInUse: a server runs on it, or another process holds it for longer.
    """
    lock = HomeLock(home)

    async def acquire() -> None:
        try:
            lock.acquire()
        except HomeInUse as error:
            if _is_listening(home):
                raise
            raise _HeldBriefly from error

    try:
        await ask_with_retry(acquire, _HeldBriefly, seconds=LOCK_SECONDS)
    except _HeldBriefly as held:
        raise held.__cause__ or held from None
    return lock


def _is_listening(home: Path) -> bool:
    with (
        contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as link,
        socket_path(home) as path,
    ):
        link.setblocking(False)
        try:
            link.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # so many wait that there is no room, or it is another user's
            return True
    return True


class ControlSocket:
    """Server of the connections to `listener`, which comes from `listening`.

    Args:
        services: of the tools.
        home: of the server.
        status: of the server.
        listener: see above.
        on_stop: sets what becomes of agents at the end of the server: `keep` or `end`.
        commands: those in containers that have clients.
    """

    def __init__(
        self,
        services: ToolServices,
        home: Path,
        status: Mapping[str, Any],
        listener: socket.socket,
        on_stop: Callable[[str], object],
        *,
        commands: AttachedCommands,
    ) -> None:
        self._services = services
        self._commands = commands
        self._home = home
        self._status = dict(status)
        self._listener = listener
        self._on_stop = on_stop
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._watch: RemovalWatch | None = None
        self._again: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve connections, first those that wait already; make the socket again when it goes."""
        await self._serve_at(self._listener)
        try:
            self._watch = RemovalWatch(self._home / CONTROL_SOCKET, self._removed)
        except OSError as error:  # commands fail then, until the server is started again
            _log.info("control socket not watched", reason=error.strerror or str(error))

    async def _serve_at(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_LINE)

    def _removed(self) -> None:
        """Begin to make the socket again, which something that cleans folders has removed."""
        if self._again is None or self._again.done():
            self._again = asyncio.create_task(self._listen_again(), name="control socket")

    async def _listen_again(self) -> None:
        before = self._server
        try:
            await self._serve_at(_bound(self._home))
        except OublietteError as error:
            _log.error("control socket lost", reason=error.message)
            return
        if before is not None:
            before.close()
        _log.warning("control socket made again", why="something has removed it")

    async def aclose(self) -> None:
        """Stop listening, end all links, remove the socket."""
        if self._watch is not None:
            self._watch.close()
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            self._server = None
            (self._home / CONTROL_SOCKET).unlink(missing_ok=True)
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._links.add(task)
        try:
            if len(self._links) > MAX_LINKS or not _is_owner(writer):
                _log.warning("control link refused", links=len(self._links))
                return
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # only aclose cancels; asyncio's server has no use for the exception
        except (OSError, TimeoutError):
            pass  # the peer disconnected, or was silent for too long
        finally:
            self._links.discard(task)
            writer.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        first = True
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    line = await reader.readline()
            except ValueError:
                refused = InvalidParameter(
                    f"the call is longer than {MAX_LINE} bytes",
                    hint="make its arguments shorter; oubliette cp copies large files",
                )
                writer.write(_line(None, _error(refused)))
                await writer.drain()
                return
            if not line.endswith(b"\n"):
                return
            if first and not line.lstrip().startswith(b"{"):
                return  # no client of ours, perhaps a program that was led here: no answer
            first = False
            number, answer = await self._answer(line, reader, writer)
            if answer is None:
                return
            writer.write(_line(number, answer))
            await writer.drain()

    async def _answer(
        self, line: bytes, reader: StreamReader, writer: StreamWriter
    ) -> tuple[Any, dict[str, Any] | None]:
        """Answer a request; None: it was one for a command, which has ended with its link."""
        try:
            request = parse(line)
        except InvalidParameter as error:
            return None, _error(error)
        if not isinstance(request, dict):
            return None, _error(InvalidParameter("the line is not an object"))
        fields = cast("dict[str, Any]", request)
        number = fields.get("id")
        try:
            check_values(fields, envelope=1)
        except InvalidParameter as error:
            return number if is_fit({"id": number}) else None, _error(error)
        match fields.get("verb"):
            case "status":
                return number, {"ok": self._status}
            case "call":
                context = OPERATOR
                if fields.get("progress") is True:
                    context = msgspec.structs.replace(OPERATOR, progress=_teller(writer, number))
                return number, await self._call(
                    context, fields.get("tool"), fields.get("arguments")
                )
            case "exec":
                client = _LinkClient(reader, writer, number)
                await self._commands.serve(OPERATOR, fields.get("arguments") or {}, client)
                await client.close()
                return number, None
            case "on_stop":
                return number, self._decide_for_agents(fields.get("agents"))
            case verb:
                return number, _error(NotFound(f"unknown verb {verb!r}"))

    def _decide_for_agents(self, agents: object) -> dict[str, Any]:
        if agents not in ("keep", "end"):  # a list, which may be any value, has no hash
            return _error(InvalidParameter("must be keep or end", field="agents"))
        self._on_stop(str(agents))
        return {"ok": {"agents": agents}}

    async def _call(self, context: CallContext, tool: object, arguments: Any) -> dict[str, Any]:
        try:
            result = await call(self._services, context, str(tool), arguments)
        except OublietteError as error:
            return _error(error)
        return result.structured if result.is_error else {"ok": result.structured}


class _LinkClient(CommandClient):
    """A link whose request for a command was read; from now on it carries frames."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, number: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._number = number

    async def read(self) -> bytes:
        return await self._reader.read(PIECE)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, answer: dict[str, Any]) -> None:
        await self.write(_line(self._number, answer))

    async def close(self) -> None:
        """Close once all is sent, or after a moment."""
        self._writer.close()
        try:
            async with asyncio.timeout(FAIL_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()


def _teller(writer: StreamWriter, number: Any) -> Callable[[str], None]:
    """A function that reports a call's progress, as far as the peer reads it."""

    def report(line: str) -> None:
        waiting = writer.transport.get_write_buffer_size()
        if not writer.is_closing() and waiting < MAX_UNREAD:
            writer.write(_line(number, {"progress": line}))

    return report


def _error(error: OublietteError) -> dict[str, Any]:
    return failure(error).structured


def _line(number: Any, answer: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"id": number, **answer}) + b"\n"


def _is_owner(writer: StreamWriter) -> bool:
    """Whether the peer runs as the server's user or as root."""
    peer = writer.get_extra_info("socket")
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:  # macOS: the permissions of the socket and its folder decide
        return True
    credentials = peer.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in {os.geteuid(), 0}
