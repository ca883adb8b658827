"""AgentToolEndpoint, which lets agents call Oubliette's tools over their sessions' links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.errors import Forbidden, Unauthenticated
from oubliette.ids import shown
from oubliette.tools.audit import note_call, note_refused_key
from oubliette.tools.auth import scopes
from oubliette.tools.registry import TABLE, call, input_schema, listed
from oubliette.tools.spec import CallContext

if TYPE_CHECKING:
    from oubliette.records import Token
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import Transport

NOT_ALLOWED = "tool not allowed for this token scope"


def context_of(token: Token, transport: Transport, session_id: str | None = None) -> CallContext:
    return CallContext(
        principal=token.principal,
        token_id=token.id,
        scope=scopes.parse(token.scope),
        transport=transport,
        session_id=session_id,
        minted=token.session_id is not None,
        expires_at=token.expires_at,
        users=token.users,
    )


class AgentToolEndpoint:
    """Oubliette's tools for agents. The key is checked on every call, not only at the discovery."""

    def __init__(self, services: ToolServices) -> None:
        self._services = services

    async def tools(self, api_key: str, session_id: str) -> list[dict[str, Any]]:
        """The tools that this key may call on this link, in the order of the table.

        Raises:
            Unauthenticated: "invalid or expired API key".
            RateLimited: its principal calls too often.
        """
        context = await self._context(api_key, session_id)
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": input_schema(tool),
            }
            for tool in listed(context.scope, "socket")
        ]

    async def call(
        self, api_key: str, session_id: str, tool: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Call a tool; the answer has the form of an MCP tool result.

        Raises:
            Unauthenticated: "invalid or expired API key".
            Forbidden: "tool not allowed for this token scope", also for what does not exist.
            RateLimited: its principal calls too often.
        """
        context = await self._context(api_key, session_id)
        entry = TABLE.get(tool)
        if entry is None or not entry.allowed(context.scope, "socket"):
            name = tool if entry is not None else shown(tool)
            await note_call(self._services, context, name, Forbidden.code)
            raise Forbidden(NOT_ALLOWED)
        result = await call(self._services, context, tool, arguments)
        answer: dict[str, Any] = {
            "content": [{"type": "text", "text": result.text}],
            "isError": result.is_error,
        }
        if not result.is_error:
            answer["structuredContent"] = result.structured
        return answer

    async def _context(self, api_key: str, session_id: str) -> CallContext:
        keys = self._services.keys
        try:
            token = await keys.verify_on_link(api_key, session_id)
        except Unauthenticated:
            if (known := keys.known(api_key)) is not None:
                await note_refused_key(self._services, known, "socket", session_id)
            raise
        if self._services.rates is not None:
            await self._services.rates.take(token.principal)
        return context_of(token, "socket", session_id)
