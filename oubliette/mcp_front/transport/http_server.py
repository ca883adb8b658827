"""HttpServer: uvicorn in our event loop, without its signal handlers and its periodic main loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, cast

import structlog
import uvicorn

from oubliette.errors import ConfigError
from oubliette.ids import shown
from oubliette.kit.fair_loop import working_for
from oubliette.mcp_front.transport.http_protocol import Deadlines, guarded
from oubliette.mcp_front.transport.listen_errors import listen_hint

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

    from oubliette.mcp_front.transport.http_protocol import GuardedProtocol, Parser

BACKLOG: Final = 512
ACCEPTED_AT_ONCE: Final = 4
"""New connections at one turn of the loop, which would accept all that wait: a flood of them."""
KEEP_ALIVE: Final = 65  # seconds that an idle connection is kept: longer than clients keep theirs
MAX_HEAD: Final = 32 * 1024  # bytes of a request's head
LAST_SECOND: Final = 1.0
STRANGERS: Final = "(without a key)"
"""All clients of which no good key is known, where the loop's time is shared (`fair_loop`)."""

log = structlog.get_logger("oubliette.front")


def client_url(host: str, port: int) -> str:
    """Return the URL of a server that listens there, for clients on its machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared only
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"


class HttpServer:
    """HTTP server of one ASGI application, which stops within a known time."""

    def __init__(
        self,
        app: ASGI3Application,
        host: str,
        port: int,
        deadlines: Deadlines | None = None,
        parser: Parser | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._empty = asyncio.Event()
        config = uvicorn.Config(
            app,
            http=guarded(deadlines or Deadlines(), self._connection_gone, parser),
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=KEEP_ALIVE,
            h11_max_incomplete_event_size=MAX_HEAD,
        )
        self._uvicorn = uvicorn.Server(config)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the listener; known after `bind`."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return host, port

    @property
    def connections(self) -> frozenset[GuardedProtocol]:
        return frozenset(cast("set[GuardedProtocol]", self._uvicorn.server_state.connections))

    @property
    def url(self) -> str:
        return client_url(*self.address)

    def bind(self) -> None:
        """Bind the port.

        Raises:
            ConfigError: the port is in use or not permitted, or the machine has no such address.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with contextlib.ExitStack() as stack:
            try:
                # With the protocol named: asyncio turns Nagle's algorithm off only where it is, and
                # with it an answer in two writes would wait 40 ms for the client's delayed
                # acknowledgement.
                listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
                stack.callback(listener.close)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((self._host, self._port))
            except OSError as error:
                raise ConfigError(
                    f"server.host, server.port: cannot listen on {self._host}:{self._port}:"
                    f" {error.strerror or error}",
                    hint=listen_hint(error),
                ) from error
            except (TypeError, ValueError) as error:  # what no resolver is asked about
                raise ConfigError(
                    f"server.host: {shown(self._host)} is no name of a machine: {error}",
                    hint="give an address of this machine, or a name that leads to one",
                ) from error
            stack.pop_all()
        listener.setblocking(False)
        self._socket = listener

    async def start(self) -> None:
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        server = self._uvicorn
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        token = working_for.set(STRANGERS)
        await server.startup(sockets=[self._socket])
        working_for.reset(token)
        self._socket.listen(BACKLOG)  # the loop has asked the kernel for as few as it accepts

    async def stop(self, grace: float) -> None:
        """Accept nothing more, wait `grace` seconds for answers to end, then close everything."""
        if self._socket is None:
            return
        state = self._uvicorn.server_state
        servers = getattr(self._uvicorn, "servers", [])
        for server in servers:
            server.close()
        self._socket.close()
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=grace)
        for connection in list(state.connections):
            connection.transport.abort()
        await self._until_empty()
        for task in list(state.tasks):
            log.warning("request cancelled", task=task.get_name())
            task.cancel()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=LAST_SECOND)
        for server in servers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), LAST_SECOND)

    async def _until_empty(self) -> None:
        """Wait until every connection is closed and its tasks have ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECOND):
                while self._uvicorn.server_state.connections:
                    self._empty.clear()
                    await self._empty.wait()
                if self._uvicorn.server_state.tasks:
                    await asyncio.wait(list(self._uvicorn.server_state.tasks))

    def _connection_gone(self) -> None:
        self._empty.set()
