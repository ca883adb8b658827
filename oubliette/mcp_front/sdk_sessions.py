# pyright: reportPrivateUsage=false
"""SdkSessions, the only access to the internals of the SDK's session manager.

The SDK makes and ends sessions. A call that bypasses it requires that the session is alive, belongs
to the same principal and has completed its handshake, and must hold off the idle timeout. The names
used here are private to the SDK (2.3); `tests/interaction/test_front_paths.py` fails if they
change.
"""

from __future__ import annotations

import asyncio
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from mcp.server.auth.middleware.bearer_auth import authorization_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

MAX_OWNERS: Final = 1024
"""Principals that are cached as owners of sessions."""
SETTLING: Final = 1.0
"""Seconds after a call within which its session gets its deadline; the timeout is in minutes."""


class SdkSessions:
    """Handshake sessions in which calls can be answered without the SDK.

    Args:
        manager: The SDK's manager, which makes and ends them.
        user: Principal → the user that its sessions are bound to.
    """

    def __init__(
        self, manager: StreamableHTTPSessionManager, user: Callable[[str], AuthenticatedUser]
    ) -> None:
        self._manager = manager

        # Cached: the SDK builds it from the user, which takes longer than all other checks here.
        @lru_cache(maxsize=MAX_OWNERS)
        def owner(principal: str) -> AuthorizationContext:
            return authorization_context(user(principal))

        self._owner = owner
        self._begun: WeakSet[StreamableHTTPServerTransport] = WeakSet()
        self._left: dict[StreamableHTTPServerTransport, float] = {}
        """Sessions that have yet to get their deadline → end of their last call on the loop's
        clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def begun(self, session_id: str) -> None:
        """Record that the handshake of this session is complete."""
        session = self._manager._server_instances.get(session_id)
        if session is not None:
            self._begun.add(session)

    def enter(self, session_id: str, principal: str) -> StreamableHTTPServerTransport | None:
        """Return the session, kept from idling out until `leave`; None: the SDK has to answer."""
        session = self._manager._server_instances.get(session_id)
        if session is None or session not in self._begun or session.is_terminated:
            return None
        if self._manager._session_owners.get(session_id) != self._owner(principal):
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
        if session._requests_in_flight:
            return
        loop = asyncio.get_running_loop()
        self._left[session] = loop.time()
        if self._timer is None and not self._stopped:
            self._timer = loop.call_later(SETTLING, self._set_deadlines)

    def stop(self) -> None:
        """Set no further deadlines: the SDK ends its sessions."""
        self._stopped = True
        self._left.clear()
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
