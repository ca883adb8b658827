"""Link to the relay of an Apple container whose published socket has ended.

A published socket ends when one connection cannot be passed on, and only a restart of the container
restores it, which would end every agent in it. So links that the socket does not accept any more
use the method of engines without sockets: one `exec -i` of `oubliette.pyz bridge` for each
(`docker.exec_bridge`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from asyncio import StreamReader, StreamWriter
from typing import TYPE_CHECKING, Final, cast

from oubliette.errors import OublietteError
from oubliette.runtime.containers.apple import argv as apple_argv
from oubliette.runtime.containers.base import ISOLATED
from oubliette.runtime.containers.bridge_transport import OPEN_SECONDS, STDERR, BridgeTransport
from oubliette.runtime.containers.unix_socket import connected

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.containers.apple.cli import AppleCli

STDOUT: Final = 1
COMMAND: Final = ("python3", *ISOLATED, apple_argv.ZIPAPP, "bridge", apple_argv.RELAY)


async def dial(
    cli: AppleCli, published: Path, container: str, limit: int
) -> tuple[StreamReader, StreamWriter]:
    """Open one more link: over the published socket, or over an exec if that has ended.

    Raises:
        OSError: no link can be opened; `ConnectionRefusedError` if the relay does not listen.
    """
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        return await asyncio.open_unix_connection(sock=connected(published), limit=limit)
    loop = asyncio.get_running_loop()
    reader = StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    bridge = BridgeTransport(protocol)
    argv = apple_argv.execute(container, COMMAND, stdin=True)
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            program = cli.program()
            process, _ = await loop.subprocess_exec(
                lambda: _Streams(bridge), program, *argv, cwd="/", start_new_session=True
            )
            bridge.begin(_Lower(process))
            await bridge.hello
    except BaseException as error:
        bridge.abort()
        if isinstance(error, (OublietteError, TimeoutError)):
            raise ConnectionRefusedError(errno.ECONNREFUSED, str(error)) from error
        raise
    return reader, StreamWriter(bridge, protocol, reader, loop)


class _Streams(asyncio.SubprocessProtocol):
    """Subprocess protocol that passes the exec's output to the bridge."""

    def __init__(self, bridge: BridgeTransport) -> None:
        self._bridge = bridge
        self._process: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._process is not None:  # it has ended and all its streams are read
            self._process.close()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._bridge.output(STDERR if fd != STDOUT else STDOUT, data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == STDOUT:
            self._bridge.ended(exc)

    def pause_writing(self) -> None:
        self._bridge.pause_writing()

    def resume_writing(self) -> None:
        self._bridge.resume_writing()


class _Lower(asyncio.Transport):
    """Transport over the standard streams of the exec."""

    def __init__(self, process: asyncio.SubprocessTransport) -> None:
        super().__init__()
        self._process = process
        self._input = cast("asyncio.WriteTransport", process.get_pipe_transport(0))
        self._output = cast("asyncio.ReadTransport", process.get_pipe_transport(STDOUT))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._input.is_closing():
            self._input.write(data)

    def close(self) -> None:
        self._input.close()  # pending input is written first; the bridge ends with its input

    def abort(self) -> None:
        if not self._input.is_closing():
            self._input.abort()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def is_closing(self) -> bool:
        return self._input.is_closing()

    def pause_reading(self) -> None:
        self._output.pause_reading()

    def resume_reading(self) -> None:
        self._output.resume_reading()

    def is_reading(self) -> bool:
        return self._output.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._input.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._input.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._input.set_write_buffer_limits(high, low)
