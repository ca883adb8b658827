"""Links to a relay over the engine's exec, if its socket cannot be opened.

One exec of `oubliette.pyz bridge` for each link; its frames are defined in
`incontainer/bridges/exec_frames.py`.
Callers get an ordinary pair of asyncio's streams: limits, back-pressure and half-closes are those
of a socket.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio import StreamReader, StreamWriter
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.errors import OublietteError
from oubliette.runtime.containers import layout
from oubliette.runtime.containers.base import ISOLATED, RELAY_DIR, RELAY_SOCKET
from oubliette.runtime.containers.bridge_transport import OPEN_SECONDS, BridgeTransport
from oubliette.runtime.containers.docker.exec_stream import open_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.runtime.containers.docker.client import Engine


COMMAND: Final = (
    "python3",
    *ISOLATED,
    layout.ZIPAPP,
    "bridge",
    f"{RELAY_DIR}/{RELAY_SOCKET}",
)

log = structlog.get_logger(__name__)


async def dial(
    engine: Engine, engine_id: str, user: str, limit: int, *, command: Sequence[str] = COMMAND
) -> tuple[StreamReader, StreamWriter]:
    """Open one more link to the relay of a container.

    Args:
        engine: the engine of the container.
        engine_id: its id at the engine.
        user: `uid:gid` of the bridge.
        limit: the reader's, in bytes.
        command: the program to run in the container.

    Raises:
        ConnectionRefusedError: no link can be opened: the container does not run, its relay does
            not listen, or the engine does not answer; the text has the reason.
    """
    loop = asyncio.get_running_loop()
    reader = StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    bridge = BridgeTransport(protocol)
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            made = await engine.call("make a bridge", _exec_create, engine_id, list(command), user)
            path = f"/exec/{made['Id']}/start"
            bridge.begin(await open_stream(engine, path, {"Detach": False, "Tty": False}, bridge))
            await bridge.hello
    except BaseException as error:
        bridge.abort()
        if isinstance(error, OublietteError):
            raise ConnectionRefusedError(errno.ECONNREFUSED, error.message) from error
        if isinstance(error, TimeoutError):
            reason = f"the bridge was not there in {OPEN_SECONDS:g} s"
            raise ConnectionRefusedError(errno.ECONNREFUSED, reason) from error
        raise
    return reader, StreamWriter(bridge, protocol, reader, loop)


def _exec_create(api: Any, engine_id: str, command: list[str], user: str) -> Any:
    return api.exec_create(engine_id, command, stdin=True, stdout=True, stderr=True, user=user)
