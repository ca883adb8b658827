# pyright: reportPrivateUsage=false
"""SdkSessions, the handshake sessions: the SDK's session manager, with limits for each principal.

The SDK makes and ends sessions, and limits those of the whole server. Here each principal has a
limit of its own, a session ends with its key, and a request that opens none leaves none. A call
that bypasses the SDK requires that the session is alive, belongs to the same principal and has
completed its handshake, and must hold off the idle timeout. The names used here are private to the
SDK (2.3); `tests/interaction/test_front_paths.py` fails if they change.
"""

from __future__ import annotations

import asyncio
import math
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from mcp.server.auth.middleware.bearer_auth import authorization_context
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from oubliette.errors import LimitExceeded
from oubliette.mcp_front.protocol import SESSION_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from starlette.types import Message, Receive, Scope, Send

    from oubliette.config.schema import CallersConfig
    from oubliette.tools.spec import CallContext

MAX_OWNERS: Final = 1024
"""Principals that are cached as owners of sessions."""
SETTLING: Final = 1.0
"""Seconds after a call within which its session gets its deadline; the timeout is in minutes."""
MAX_TIMER: Final = 86_400.0
"""Seconds until the end of a key for which its sessions have a timer: none lives longer unused."""
_OPENING: Final = "oubliette.opening"
"""Key of the session that a request opens in the request's scope."""


class _Counted:
    """A session that counts for its principal."""

    __slots__ = ("expiry", "principal", "token_id")

    def __init__(self, context: CallContext, expiry: asyncio.TimerHandle | None) -> None:
        self.principal = context.principal
        self.token_id = context.token_id
        self.expiry = expiry


class SdkSessions(StreamableHTTPSessionManager):
    """Handshake sessions, in which calls can be answered without the SDK.

    Args:
        server: Answers their requests.
        config: The limit of a principal, and the time after which an unused session ends.
        max_body_bytes: Size limit of a request's body.
        user: Principal → the user that its sessions are bound to.
        ended: Called with the id of each session that has ended.
    """

    def __init__(
        self,
        server: Server[Any],
        config: CallersConfig,
        max_body_bytes: int,
        user: Callable[[str], AuthenticatedUser],
        ended: Callable[[str], None],
    ) -> None:
        super().__init__(
            server,
            max_request_body_size=max_body_bytes,
            session_idle_timeout=config.mcp_session_idle_seconds,
        )
        self._most = config.max_mcp_sessions
        self._ended = ended

        # Cached: the SDK builds it from the user, which takes longer than all other checks here.
        @lru_cache(maxsize=MAX_OWNERS)
        def owner(principal: str) -> AuthorizationContext:
            return authorization_context(user(principal))

        self._owner = owner
        self._counted: dict[StreamableHTTPServerTransport, _Counted] = {}
        self._own: dict[str, set[StreamableHTTPServerTransport]] = {}
        """Principal → those of its sessions that are counted."""
        self._begun: WeakSet[StreamableHTTPServerTransport] = WeakSet()
        self._left: dict[StreamableHTTPServerTransport, float] = {}
        """Sessions that have yet to get their deadline → end of their last call on the loop's
        clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    # ------------------------------------------------------------ their number
    def initialized(self, scope: Scope, context: CallContext) -> None:
        """Count the session that this request has opened; end another one that is too many.

        Raises:
            LimitExceeded: all sessions of the principal are in use.
        """
        session: StreamableHTTPServerTransport | None = scope.get(_OPENING)
        if session is None or session in self._counted:
            return
        own = self._own.setdefault(context.principal, set())
        if len(own) >= self._most:
            unused = [each for each in own if not each._requests_in_flight]
            if not unused:
                raise LimitExceeded(
                    f"{len(own)} MCP sessions are open and in use already"
                    f" (callers.max_mcp_sessions = {self._most})",
                    hint="end one of them with DELETE, or close its GET stream",
                )
            self._end(min(unused, key=self._unused_since))
        self._counted[session] = _Counted(context, self._at_expiry(session, context))
        self._own.setdefault(context.principal, own).add(session)

    def key_ended(self, token_id: str) -> None:
        """End the sessions that were opened with this key, which is not valid any more."""
        for session in [s for s, of in self._counted.items() if of.token_id == token_id]:
            self._end(session)

    def _at_expiry(
        self, session: StreamableHTTPServerTransport, context: CallContext
    ) -> asyncio.TimerHandle | None:
        if context.expires_at is None or context.expires_at - time.time() > MAX_TIMER:
            return None
        seconds = max(0.0, context.expires_at - time.time())
        return asyncio.get_running_loop().call_later(seconds, self._end, session)

    def _unused_since(self, session: StreamableHTTPServerTransport) -> float:
        left = self._left.get(session)
        if left is not None:
            return left
        idle = session.idle_scope
        assert idle is not None
        return idle.deadline

    def _end(self, session: StreamableHTTPServerTransport) -> None:
        """End a session: its id is unknown at once, its requests and streams end after that."""
        session_id = session.mcp_session_id
        assert session_id is not None
        assert session.idle_scope is not None
        self._server_instances.pop(session_id, None)
        self._session_owners.pop(session_id, None)
        self._forget(session)
        session.idle_scope.cancel()  # its task ends, and discards it

    def _forget(self, session: StreamableHTTPServerTransport) -> None:
        counted = self._counted.pop(session, None)
        self._left.pop(session, None)
        if counted is None:
            return
        if counted.expiry is not None:
            counted.expiry.cancel()
        own = self._own[counted.principal]
        own.discard(session)
        if not own:
            del self._own[counted.principal]
        assert session.mcp_session_id is not None
        self._ended(session.mcp_session_id)

    async def _discard_session(
        self, session_id: str, transport: StreamableHTTPServerTransport
    ) -> None:
        self._forget(transport)
        await super()._discard_session(session_id, transport)

    async def _serve_opening_request(
        self,
        http_transport: StreamableHTTPServerTransport,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request without a session, which keeps the new one only if it was initialised.

        An `initialize` that fails is answered with status 200, which the SDK takes for success;
        and the answer to a refused request has no id: its session is gone.
        """
        scope[_OPENING] = http_transport
        session_id = http_transport.mcp_session_id
        assert session_id is not None
        try:
            await super()._serve_opening_request(
                http_transport, scope, receive, _without_session(send)
            )
        finally:
            if http_transport not in self._counted:
                await self._discard_session(session_id, http_transport)

    # ------------------------------------------------------------ calls without the SDK
    def begun(self, session_id: str) -> None:
        """Record that the handshake of this session is complete."""
        session = self._server_instances.get(session_id)
        if session is not None:
            self._begun.add(session)

    def enter(self, session_id: str, principal: str) -> StreamableHTTPServerTransport | None:
        """Return the session, kept from idling out until `leave`; None: the SDK has to answer."""
        session = self._server_instances.get(session_id)
        if session is None or session not in self._begun or session.is_terminated:
            return None
        if self._session_owners.get(session_id) != self._owner(principal):
            return None
        idle = session.idle_scope
        if idle is None or idle.cancel_called or session._idle_timeout is None:
            return None
        session._requests_in_flight += 1
        if idle.deadline != math.inf:
            idle.deadline = math.inf
        return session

    def leave(self, session: StreamableHTTPServerTransport) -> None:
        """Release a session after a call in it was answered.

        Its deadline is set soon, together with those of others: that costs as much as a check of a
        key, and is in vain in a session that makes its next call.
        """
        session._requests_in_flight -= 1
        if session._requests_in_flight or session not in self._counted:
            return
        loop = asyncio.get_running_loop()
        self._left[session] = loop.time()
        if self._timer is None and not self._stopped:
            self._timer = loop.call_later(SETTLING, self._set_deadlines)

    def stop(self) -> None:
        """Set no further deadlines: the SDK ends its sessions."""
        self._stopped = True
        self._left.clear()
        for counted in self._counted.values():
            if counted.expiry is not None:
                counted.expiry.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_deadlines(self) -> None:
        self._timer = None
        left, self._left = self._left, {}
        for session, since in left.items():
            idle = session.idle_scope
            assert idle is not None
            assert session._idle_timeout is not None
            # The SDK may be answering a request in it, or have set a later one after that.
            if not session._requests_in_flight and idle.deadline == math.inf:
                idle.deadline = since + session._idle_timeout


def _without_session(send: Send) -> Send:
    """Return `send`, which takes the id of the session from the head of a refusal."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            message["headers"] = [
                pair for pair in message["headers"] if pair[0].lower() != SESSION_HEADER
            ]
        await send(message)

    return sent
