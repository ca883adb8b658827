"""The current tool call, as tools that answer with a stream see it.

Nothing here imports the SDK, which is loaded later (`sdk.py`).
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from oubliette.mcp_front.transport.request_stream import RequestStream


@dataclass(frozen=True, slots=True)
class CurrentCall:
    """The call that is being answered, for a tool that answers it as a stream."""

    context: ServerRequestContext[Any, Any]
    exchange: RequestStream

    @property
    def modern(self) -> bool:
        """Whether the client uses 2026-07-28 or later: no session, no GET stream."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def takes_events(self) -> bool:
        """Whether events may be sent on this call's response.

        A handshake client always accepts log messages; a modern one only if it has opted in for
        this request, at a level that includes `info`.
        """
        if not self.modern:
            return True
        from mcp_types import LOG_LEVEL_META_KEY

        level = (self.context.meta or {}).get(LOG_LEVEL_META_KEY)
        return level in {"debug", "info"}


current_call: ContextVar[CurrentCall] = ContextVar("oubliette_current_call")
