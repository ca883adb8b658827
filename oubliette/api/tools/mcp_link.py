"""The connection to one MCP server: kept by a task of its own, and opened again when lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from oubliette.api.tools.context import LOG
from oubliette.api.tools.errors import BadTool, ToolError
from oubliette.api.tools.guarded import described

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

_OPEN_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.1  # seconds between two attempts to open; doubled with each that fails
_LONGEST_PAUSE: Final = 5.0  # seconds
_MOST_PAGES: Final = 100
_ERROR_STATUS: Final = 400


class McpLink:
    """One connection to a server, in a task of its own.

    The scopes of the MCP library have to be left in the task that entered them, but who closes a
    stack may be another task (the fixture of a test, a framework's shutdown).
    """

    def __init__(
        self, name: str, connect: Callable[[AsyncExitStack, McpLink], Awaitable[Any]]
    ) -> None:
        self._name = name
        self._connect = connect
        self._closing = asyncio.Event()
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        """Set when it is of no use any more."""
        self.forgotten = 0
        """Calls that the server did not take, because it has no such session."""
        self.calls = 0
        """Under way."""
        self.crowded = False
        """Whether calls were under way at the same time: which one broke it is not known then."""
        self.status = 0
        """HTTP status of the newest answer to a call, which the MCP library keeps to itself."""
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._serve(), name=f"oubliette {name}")

    @property
    def never_sent(self) -> bool:
        """Whether it ended before the call could be sent."""
        return not self.crowded and self._error is not None and _is_refusal(self._error)

    async def connected(self) -> Any:
        """Return the client once it is connected.

        Raises:
            Exception: it cannot connect.
        """
        return await asyncio.shield(self._client)

    async def noted(self, response: Any) -> None:
        """Note a server that has forgotten the session; called with each response over HTTP."""
        request = response.request
        is_call = b'"tools/call"' in request.content
        if is_call:
            self.status = response.status_code
        # The protocol has 404 for it, many servers have 400. Neither has taken what was sent.
        if response.status_code in {400, 404} and "mcp-session-id" in request.headers:
            self.lost.set()
            self.forgotten += is_call

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
                self._client.set_result(await self._connect(stack, self))
                await self._closing.wait()
        except Exception as error:
            self._error = error
            if not self._client.done():
                self._client.set_exception(error)
            elif not self._closing.is_set():
                LOG.warning("the connection to %s has failed", self._name, exc_info=True)
        finally:
            self.lost.set()
            self._client.cancel()


class McpConnection:
    """A server of tools: its connection is opened again at the next call after it was lost.

    Args:
        name: of the server, for messages.
        connect: connects and returns the client, which ends with the stack.
    """

    def __init__(
        self, name: str, connect: Callable[[AsyncExitStack, McpLink], Awaitable[Any]]
    ) -> None:
        self._name = name
        self._connect = connect
        self._opening = asyncio.Lock()
        self._link: McpLink | None = None
        self._pause = 0.0
        self._not_before = 0.0

    async def opened(self) -> McpLink:
        """Return the connection, which is opened if there is none.

        Raises:
            BadTool: the server cannot be reached.
        """
        async with self._opening:
            old = self._link
            if old is not None and not old.lost.is_set():
                return old
            await self._left(old)
            await asyncio.sleep(self._not_before - asyncio.get_running_loop().time())
            link = McpLink(self._name, self._connect)
            try:
                with anyio.fail_after(_OPEN_SECONDS):
                    await link.connected()
            except BaseException as error:
                await link.close()
                self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                self._not_before = asyncio.get_running_loop().time() + self._pause
                if isinstance(error, TimeoutError):
                    raise BadTool(f"{self._name}: no answer within {_OPEN_SECONDS:g} s") from None
                if isinstance(error, BadTool) or not isinstance(error, Exception):
                    raise
                reason = described(error)
                raise BadTool(f"{self._name}: cannot be opened: {reason}") from error
            self._pause, self._link = 0.0, link
            return link

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: Any) -> Any:
        """Return what the client returns of a call, which is sent once.

        It is sent again, by a new connection, only if the server has not taken it.

        Raises:
            ToolError: the server cannot be reached, or the connection broke.
            Exception: of the client.
        """
        for again in (True, False):
            try:
                link = await self.opened()
            except BadTool as error:
                raise ToolError(f"{error}; the next call tries again") from error
            client = await link.connected()
            link.crowded = link.calls > 0
            link.calls += 1
            link.status = 0
            try:
                return await client.call_tool(tool, arguments, progress_callback=on_progress)
            except Exception as error:
                if not await self._is_untaken(link, error):
                    if link.status < _ERROR_STATUS or link.crowded:
                        raise
                    raise ToolError(f"{described(error)} (HTTP {link.status})") from error
                if not again:
                    raise ToolError(
                        f"{self._name} does not take calls: {described(error)}"
                    ) from error
            finally:
                link.calls -= 1
                if link is not self._link:
                    await self._left(link)
        raise AssertionError

    async def _is_untaken(self, link: McpLink, error: Exception) -> bool:
        """Return whether the server has not taken the call that failed.

        Raises:
            ToolError: the connection broke, and it may have carried the call out.
        """
        from mcp_types import CONNECTION_CLOSED

        if getattr(error, "code", None) != CONNECTION_CLOSED:
            untaken = link.forgotten > 0
            link.forgotten -= untaken
            return untaken
        link.lost.set()
        await link.close()
        if link.never_sent:
            return True
        raise ToolError(
            f"the connection to {self._name} broke, and the call may have been carried out: "
            "look before you call again"
        ) from error

    async def _left(self, link: McpLink | None) -> None:
        """Close a lost connection, once its last call is over."""
        if link is not None and link.calls == 0:
            await link.close()

    async def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            await self._link.close()


@asynccontextmanager
async def noting_end(transport: Any, ended: Callable[[], object]) -> AsyncGenerator[Any]:
    """Enter a transport of the MCP library; `ended` is called once the server has closed it."""
    async with transport as (reading, writing):
        yield _Reading(reading, ended), writing


class _Reading:
    """A stream of messages whose end is reported."""

    def __init__(self, stream: Any, ended: Callable[[], object]) -> None:
        self._stream = stream
        self._ended = ended

    async def __aenter__(self) -> Any:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *failed: object) -> Any:
        self._ended()
        return await self._stream.__aexit__(*failed)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._stream:
            yield item
        self._ended()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_refusal(error: BaseException) -> bool:
    """Return whether no connection could be made, of which nothing was sent."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(map(_is_refusal, group.exceptions))
    return type(error).__name__ in {"ConnectError", "ConnectTimeout"}


async def listed(client: Any, name: str) -> list[Any]:
    """Return all tools of the server of this name, page by page.

    The listing ends at an empty cursor, and at one that came before: there are servers that always
    return one.
    """
    from mcp import ClientSession
    from mcp_types import PaginatedRequestParams

    found: list[Any] = []
    cursor: str | None = None
    seen: set[str] = set()
    while len(seen) < _MOST_PAGES:
        if isinstance(client, ClientSession):
            params = PaginatedRequestParams(cursor=cursor)
            page = await client.list_tools(params=params)
        else:
            page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            return found
        if cursor in seen:
            LOG.warning("%s: its list of tools goes round; what it had so far is offered", name)
            return found
        seen.add(cursor)
    LOG.warning("%s: only the first %d pages of its tools are offered", name, _MOST_PAGES)
    return found
