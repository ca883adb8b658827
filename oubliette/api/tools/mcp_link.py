"""The connection to one MCP server, kept by a task of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import anyio

from oubliette.api.tools.context import LOG
from oubliette.api.tools.errors import BadTool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_CLOSE_SECONDS: Final = 10.0
_MOST_PAGES: Final = 100


class McpLink:
    """The connection to one server, in a task of its own.

    The scopes of the MCP library have to be left in the task that entered them, but who closes a
    stack may be another task (the fixture of a test, a framework's shutdown).
    """

    def __init__(self, name: str, connect: Callable[[AsyncExitStack], Awaitable[Any]]) -> None:
        self._name = name
        self._connect = connect
        self._closing = asyncio.Event()
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(), name=f"oubliette {name}")

    async def connected(self) -> Any:
        """Return the client once it is connected.

        Raises:
            Exception: it cannot connect.
        """
        return await asyncio.shield(self._client)

    async def close(self) -> None:
        """End the connection and its task."""
        self._closing.set()
        if not self._client.done():
            self._task.cancel()
        with anyio.CancelScope(shield=True):
            _, late = await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
            if late:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        if self._client.done() and not self._client.cancelled():
            self._client.exception()  # seen, even if the opening was cancelled before

    async def _serve(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._client.set_result(await self._connect(stack))
                await self._closing.wait()
        except Exception as error:
            if not self._client.done():
                self._client.set_exception(error)
            elif not self._closing.is_set():
                LOG.warning("the connection to %s has failed", self._name, exc_info=True)
        finally:
            self._client.cancel()


async def listed(client: Any) -> list[Any]:
    """Return all tools of the server, page by page."""
    from mcp import ClientSession
    from mcp_types import PaginatedRequestParams

    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        if isinstance(client, ClientSession):
            params = PaginatedRequestParams(cursor=cursor)
            page = await client.list_tools(params=params)
        else:
            page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise BadTool(f"the server has more than {_MOST_PAGES} pages of tools")
