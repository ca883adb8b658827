# pyright: reportPrivateUsage=false
"""SdkSessions, the only access to the internals of the SDK's session manager.

The SDK makes and ends sessions. A call that bypasses it requires that the session is alive, belongs
to the same principal and has completed its handshake, and must hold off the idle timeout. The names
used here are private to the SDK (2.3); `tests/interaction/test_front_paths.py` fails if they
change.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio
from mcp.server.auth.middleware.bearer_auth import authorization_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


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
        self._user = user
        self._begun: WeakSet[StreamableHTTPServerTransport] = WeakSet()

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
        owner = authorization_context(self._user(principal))
        if self._manager._session_owners.get(session_id) != owner:
            return None
        idle = session.idle_scope
        if idle is None or idle.cancel_called or session._idle_timeout is None:
            return None
        session._requests_in_flight += 1
        idle.deadline = math.inf
        return session

    @staticmethod
    def leave(session: StreamableHTTPServerTransport) -> None:
        """Release a session after a call in it was answered."""
        session._requests_in_flight -= 1
        if not session._requests_in_flight:
            assert session.idle_scope is not None
            assert session._idle_timeout is not None
            session.idle_scope.deadline = anyio.current_time() + session._idle_timeout
