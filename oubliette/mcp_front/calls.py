"""Tool calls, from the SDK (`mcp_server`) and from the direct path (`direct_path`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from oubliette.mcp_front.tool_adapter import ToolAdapter
    from oubliette.mcp_front.transport.request_stream import RequestStream
    from oubliette.tools.schema.tool_result import ToolResult

BeforeCall = Callable[["RequestStream", str, str, dict[str, Any] | None], Awaitable[None]]
"""Callback with exchange, MCP session, tool and arguments."""


class ToolCalls:
    """Calls of tools, until the server stops.

    Args:
        tools: The tool table.
        before_call: Awaited for each call in a handshake session, before it is answered.
    """

    def __init__(self, tools: ToolAdapter, before_call: BeforeCall) -> None:
        self._tools = tools
        self._before_call = before_call
        self._running: set[asyncio.Task[Any]] = set()
        self._given_up: set[asyncio.Task[Any]] = set()

    def is_plain(self, name: str) -> bool:
        """Whether the tool exists and always answers with one document."""
        return self._tools.has(name) and not self._tools.streams(name)

    async def ask(
        self,
        exchange: RequestStream,
        session_id: str | None,
        name: str,
        arguments: dict[str, Any] | None,
    ) -> ToolResult:
        """Call a tool for the client of `exchange`; `session_id` of a handshake session.

        Raises:
            Unavailable: the server stops before there is an answer.
        """
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if session_id is not None:
                await self._before_call(exchange, session_id, name, arguments)
            return await self._tools.call(exchange.who.context, name, arguments)
        except asyncio.CancelledError:
            if task not in self._given_up:
                raise
            task.uncancel()
            raise Unavailable(
                f"the server is stopping, and {name} has no answer yet; what agents have begun"
                " is not undone by that",
                hint="call again once the server is back, which takes seconds where it is restarted"
                "; with the idempotency_key of this call where it had one",
            ) from None
        finally:
            self._running.discard(task)
            self._given_up.discard(task)

    def give_up(self) -> None:
        """Answer the remaining calls with an error: the server stops."""
        for task in self._running - self._given_up:
            self._given_up.add(task)
            task.cancel("the server stops")
