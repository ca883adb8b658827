"""Sdk, the MCP SDK behind the front, which is imported while the server is already listening.

Its import takes longer than the rest of the start: its models are compiled one by one. So the port
answers first, and a thread imports the SDK meanwhile; a request that needs the SDK waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from importlib import import_module
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from starlette.types import Receive, Scope, Send

    from oubliette.config.schema import Config
    from oubliette.mcp_front.calls import ToolCalls
    from oubliette.mcp_front.mcp_server import McpDispatcher
    from oubliette.mcp_front.sdk_sessions import SdkSessions
    from oubliette.mcp_front.tool_adapter import ToolAdapter
    from oubliette.tools.spec import CallContext

LOADING: Final = "the MCP library is still being loaded"
LOAD_SECONDS: Final = 60.0  # for a request to wait; on a machine that is not busy it takes one
MAX_USERS: Final = 4096  # principals whose user is cached

PARTS: Final = (
    "pydantic",
    "mcp_types",
    "mcp_types.methods",
    "starlette.responses",
    "mcp.server.streamable_http_manager",
    "oubliette.mcp_front.mcp_server",
    "oubliette.mcp_front.sdk_sessions",
)
"""Modules to import, each after those that it depends on; a stop is checked for between them."""

log = structlog.get_logger("oubliette.front")


class Sdk:
    """Requests served with the MCP SDK. `start`, then `stop`; once each.

    Args:
        tools: The tool table.
        calls: Executes tool calls.
        config: The server's configuration.
        session_ended: Called with the id of each handshake session that has ended.
    """

    def __init__(
        self,
        tools: ToolAdapter,
        calls: ToolCalls,
        config: Config,
        session_ended: Callable[[str], None],
    ) -> None:
        self._tools = tools
        self._calls = calls
        self._config = config
        self._session_ended = session_ended
        self._stopping = False
        self._end = asyncio.Event()
        self._ready: asyncio.Future[SdkSessions] = asyncio.get_running_loop().create_future()
        self._dispatch: McpDispatcher | None = None
        self.sessions: SdkSessions | None = None
        """Its handshake sessions; None until the SDK is loaded."""
        self._run: asyncio.Task[None] | None = None
        self._users: dict[str, AuthenticatedUser] = {}

    @property
    def loaded(self) -> bool:
        return self._ready.done()

    async def wait_loaded(self) -> None:
        """Return once the SDK is loaded or has failed to load."""
        await asyncio.wait([self._ready])

    def start(self) -> None:
        self._run = asyncio.get_running_loop().create_task(self._serve(), name="mcp sessions")

    async def ended(self) -> None:
        """Wait for its end.

        Raises:
            Exception: the error of the import or of the running SDK.
        """
        assert self._run is not None, "start comes first"
        await asyncio.shield(self._run)

    async def __call__(self, principal: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of this principal.

        Raises:
            Unavailable: the SDK is not loaded in time, or the server stops.
        """
        ready = self._ready
        if not ready.done():
            try:
                async with asyncio.timeout(LOAD_SECONDS):
                    await asyncio.shield(ready)
            except TimeoutError as error:
                raise Unavailable(LOADING) from error
        scope["user"] = self._user(principal)
        await ready.result().asgi_app(scope, receive, send)

    def key_ended(self, token_id: str) -> None:
        """End the sessions of a key that is not valid any more."""
        if self.sessions is not None:
            self.sessions.key_ended(token_id)

    def close(self) -> None:
        """Close open `subscriptions/listen` streams regularly; stop importing."""
        self._stopping = True
        if self._dispatch is not None:
            self._dispatch.close()

    async def stop(self, seconds: float) -> None:
        """End its sessions, within `seconds`."""
        if self.sessions is not None:
            self.sessions.stop()
        self._end.set()
        if self._run is not None:
            await asyncio.wait([self._run], timeout=seconds)

    async def cut(self) -> None:
        """Cancel what `stop` has not ended."""
        if self._run is not None and not self._run.done():
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._run

    async def _serve(self) -> None:
        began = time.monotonic()
        try:
            if not await asyncio.to_thread(self._import):
                self._fail(Unavailable("server stopping"))
                return
            manager = self._build()
        except BaseException as error:
            self._fail(error)
            raise
        log.info("MCP SDK loaded", seconds=round(time.monotonic() - began, 3))
        async with manager.run():
            self._ready.set_result(manager)
            await self._end.wait()

    def _fail(self, error: BaseException) -> None:
        self._ready.set_exception(error)
        self._ready.exception()  # retrieved, because no request may be waiting

    def _import(self) -> bool:
        for name in PARTS:
            if self._stopping:
                return False
            import_module(name)
        return not self._stopping

    def _build(self) -> SdkSessions:
        from oubliette.mcp_front.mcp_server import McpDispatcher
        from oubliette.mcp_front.sdk_sessions import SdkSessions

        _no_shutdown_watcher()
        self._dispatch = McpDispatcher(self._tools, self._calls, self._initialized, self._begun)
        self.sessions = SdkSessions(
            self._dispatch.server,
            self._config.callers,
            self._config.server.max_body_bytes,
            self._user,
            self._session_ended,
        )
        return self.sessions

    def _initialized(self, scope: Scope, context: CallContext) -> None:
        assert self.sessions is not None, "a handshake passes through its sessions"
        self.sessions.initialized(scope, context)

    def _begun(self, session_id: str) -> None:
        assert self.sessions is not None, "a handshake passes through its sessions"
        self.sessions.begun(session_id)

    def _user(self, principal: str) -> AuthenticatedUser:
        """The user that the SDK binds sessions to: the principal, whichever key it uses."""
        user = self._users.get(principal)
        if user is None:
            from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
            from mcp.server.auth.provider import AccessToken

            if len(self._users) >= MAX_USERS:
                self._users.pop(next(iter(self._users)))
            user = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
            self._users[principal] = user
        return user


def _no_shutdown_watcher() -> None:
    """Prevent sse-starlette from polling uvicorn for a signal, twice a second without end.

    Streams are ended by `McpApp.stop` instead. There is no public switch (sse-starlette 3.7).
    """
    from sse_starlette import sse

    state = sse._get_shutdown_state()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    state.watcher_started = True
