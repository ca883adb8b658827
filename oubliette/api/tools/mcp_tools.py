"""`mcp()`: the tools of an MCP server, forwarded to agents by the program."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from oubliette import ids
from oubliette.api.tools.errors import BadTool, ToolCallRefused, ToolError
from oubliette.api.tools.guarded import LOG, GuardedTool, described
from oubliette.api.tools.prepared import PreparedTool, ToolSource
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.api.tools.context import Call

_OPEN_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 10.0
_READ_SECONDS: Final = 3600.0  # of silence in a response, while a tool works
_MOST_PAGES: Final = 100
_LONGEST_NAME: Final = 128  # characters


def mcp(
    target: object,
    *,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    durable: bool = False,
    timeout: float | None = None,
) -> McpTools:
    """Return the tools of an MCP server, to be given as `tools=[oubliette.mcp(…)]`.

    The tools are listed once, when the server is connected. Requests of the server to its client
    (sampling, elicitation) are refused.

    Args:
        target: a URL (Streamable HTTP); a list with a program and its arguments (stdio); a server
            of the `mcp` package in this process; or its `Client` or `ClientSession`. One that is
            connected already is used as it is and stays connected.
        headers: HTTP headers for a URL, such as `Authorization`.
        prefix: stands before the name of each tool.
        durable: calls wait for a program that is not there, until their deadline.
        timeout: seconds after which a call fails; by default the deadline of the call alone.

    Raises:
        BadTool: the target is none of these, or headers were given for one without HTTP.
    """
    if isinstance(target, str):
        if not target.startswith(("http://", "https://")):
            raise BadTool(
                f"mcp: {ids.shown(target)} is no URL", hint='a program is a list: ["uvx", "NAME"]'
            )
    elif headers is not None:
        raise BadTool("mcp: headers are for a URL; this server is not reached by HTTP")
    elif isinstance(target, Sequence):
        argv = cast("Sequence[object]", target)
        if not argv or not all(isinstance(part, str) for part in argv):
            raise BadTool(f"mcp: {ids.shown(argv)} is no program: give a list of strings")
    try:
        if prefix:
            ids.check_tool_name(prefix, "prefix")
    except InvalidParameter as error:
        raise BadTool(f"mcp: {error}") from None
    return McpTools(cast("object", target), headers, prefix, durable=durable, timeout=timeout)


class McpTools(ToolSource):
    """The tools of one MCP server; `mcp()` makes it."""

    def __init__(
        self,
        target: object,
        headers: Mapping[str, str] | None,
        prefix: str,
        *,
        durable: bool,
        timeout: float | None,
    ) -> None:
        self._target = target
        self._headers = dict(headers or {})
        self._prefix = prefix
        self._durable = durable
        self._timeout = timeout

    def __repr__(self) -> str:
        target = self._target
        if isinstance(target, list | tuple):
            return f"mcp({cast('list[str]', target)[0]} …)"  # arguments may have secrets
        if isinstance(target, str):
            return f"mcp({re.sub('//[^/@]*@', '//', target).partition('?')[0]})"
        return f"mcp({type(target).__name__})"

    async def open(self, stack: AsyncExitStack) -> list[PreparedTool]:
        """Connect the server and list its tools; they can be called until `stack` is closed.

        Raises:
            BadTool: the server cannot be reached, or fails to list its tools.
        """
        link = _Link(self)
        try:
            with anyio.fail_after(_OPEN_SECONDS):
                client = await link.connected()
                found = await _listed(client)
        except BaseException as error:
            await link.close()
            if isinstance(error, TimeoutError):
                raise BadTool(f"{self!r}: no answer within {_OPEN_SECONDS:g} s") from None
            if isinstance(error, BadTool) or not isinstance(error, Exception):
                raise
            raise BadTool(f"{self!r}: cannot be opened: {described(error)}") from error
        stack.push_async_callback(link.close)
        return [
            McpTool(
                self,
                client,
                each,
                prefix=self._prefix,
                durable=self._durable,
                timeout=self._timeout,
            )
            for each in found
        ]

    async def client(self, stack: AsyncExitStack) -> Any:
        """Return a connected client of the server; one that is made here ends with `stack`.

        Raises:
            BadTool: there is no MCP library, or it cannot connect to such a target.
        """
        try:
            from mcp import Client, ClientSession, StdioServerParameters
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as error:
            raise BadTool(f"mcp: {error}", hint="pip install mcp") from None
        target: Any = self._target
        if isinstance(target, ClientSession):
            return target
        if isinstance(target, Client):
            return target if _is_connected(target) else await stack.enter_async_context(target)
        if isinstance(target, str):
            import httpx2

            seconds = httpx2.Timeout(_OPEN_SECONDS, read=_READ_SECONDS)
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers=self._headers, timeout=seconds)
            )
            target = streamable_http_client(target, http_client=http)
        elif isinstance(target, Sequence):
            command, *arguments = cast("Sequence[str]", target)
            target = StdioServerParameters(command=command, args=arguments)
        return await stack.enter_async_context(Client(target))


class McpTool(GuardedTool):
    """One tool of an MCP server, which checks the arguments itself."""

    def __init__(
        self,
        source: McpTools,
        client: Any,
        listed: Any,
        *,
        prefix: str,
        durable: bool,
        timeout: float | None,
    ) -> None:
        self._source = source
        self._client = client
        self._remote_name: str = listed.name
        # Names of other servers may have characters that agents' clients refuse.
        self.name = re.sub(r"[^A-Za-z0-9_.-]", "_", prefix + listed.name)[:_LONGEST_NAME]
        self.description = listed.description or listed.title or ""
        self.input_schema = {"type": "object", **listed.input_schema}
        self.durable = durable
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"{self._remote_name} of {self._source!r}"

    async def carry_out(self, arguments: dict[str, Any], call: Call) -> Any:
        """Forward the call, and return the structured result of the server, else its text.

        Raises:
            ToolCallRefused: the server's tool has failed; the message is its text.
            Exception: the server does not answer.
        """

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            amount = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            call.progress(message or amount)

        try:
            result = await self._client.call_tool(
                self._remote_name, arguments, progress_callback=on_progress
            )
        except Exception as error:
            LOG.warning("tool %s of %r failed", self.name, self._source, exc_info=True)
            raise ToolError(f"{self.name}: {described(error)}") from error
        content: list[dict[str, Any]] = [
            block.model_dump(mode="json", by_alias=True, exclude_none=True)
            for block in result.content
        ]
        is_text = all(block.get("type") == "text" for block in content)
        text = "\n".join(str(block.get("text", "")) for block in content)
        if result.is_error:
            raise ToolCallRefused(text or f"{self.name}: failed, and gave no reason")
        if not is_text:
            return content
        return text if result.structured_content is None else result.structured_content


class _Link:
    """The connection to one server, in a task of its own.

    The scopes of the MCP library have to be left in the task that entered them, but who closes a
    stack may be another task (the fixture of a test, a framework's shutdown).
    """

    def __init__(self, source: McpTools) -> None:
        self._source = source
        self._closing = asyncio.Event()
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(), name=f"oubliette {source!r}")

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

    async def _serve(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._client.set_result(await self._source.client(stack))
                await self._closing.wait()
        except Exception as error:
            if not self._client.done():
                self._client.set_exception(error)
            elif not self._closing.is_set():
                LOG.warning("the connection to %r has failed", self._source, exc_info=True)
        finally:
            self._client.cancel()


async def _listed(client: Any) -> list[Any]:
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


def _is_connected(client: Any) -> bool:
    try:
        return client.session is not None
    except RuntimeError:
        return False
