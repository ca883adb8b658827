"""LoopbackServer, a small HTTP server of a test on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final, Self

import uvicorn

if TYPE_CHECKING:
    from starlette.types import ASGIApp

END_SECONDS: Final = 5.0


class LoopbackServer:
    """Server of one ASGI app; listens from its construction, and answers while its block runs.

    Args:
        host: Address to bind.
        port: 0 picks a free one.
        name: Name of its task.
    """

    def __init__(self, host: str, port: int, name: str) -> None:
        self._socket = socket.create_server((host, port))
        # Asyncio does that only for sockets made with IPPROTO_TCP; small pieces would wait 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.root: Final = f"http://{host}:{self._socket.getsockname()[1]}"
        """Base URL, without a path."""
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._server: uvicorn.Server | None = None

    async def start(self, app: ASGIApp) -> Self:
        """Begin to answer."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = _Quiet(config)
        self._task = asyncio.create_task(
            self._server.serve(sockets=[self._socket]), name=self._name
        )
        return self

    async def aclose(self) -> None:
        """Stop answering, and close the address and all connections."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.wait([self._task], timeout=END_SECONDS)
            # It leaves those open whose answer is under way; one from which nothing is read at that
            # moment would not notice that its client has gone.
            state = self._server.server_state
            for connection in list(state.connections):
                connection.transport.abort()
            for task in state.tasks:
                task.cancel()
            await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0)), *state.tasks], timeout=1)
        self._socket.close()


class _Quiet(uvicorn.Server):
    """Server that leaves the process's signals alone."""

    def capture_signals(self) -> Any:
        """Do nothing."""
        return contextlib.nullcontext()
