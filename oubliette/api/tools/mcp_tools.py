"""`mcp()`: the tools of an MCP server, forwarded to agents by the program."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import anyio.to_thread

from oubliette import ids
from oubliette.api.http.surroundings import by_proxy, http_client
from oubliette.api.tools.context import LOG
from oubliette.api.tools.decorator import check_timeout
from oubliette.api.tools.errors import BadTool, ToolError
from oubliette.api.tools.guarded import GuardedTool, described
from oubliette.api.tools.mcp_link import McpConnection, McpLink, listed, noting_end
from oubliette.api.tools.prepared import PreparedTool, ToolSource
from oubliette.config.secret_names import bare_url
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack
    from typing import TextIO

    from oubliette.api.tools.context import Call

_LONGEST_NAME: Final = 128  # characters
_LONGEST_DESCRIPTION: Final = 64 * 1024  # characters


def named(listed: Sequence[Any], prefix: str, server: str) -> list[tuple[str, Any]]:
    """Return the tools of a server, each with a name that agents' clients take, and no other has.

    Names of other servers may have any characters and any length. Those that become the same get a
    suffix; a name that can stay as it is stays.
    """
    first: dict[str, Any] = {}
    for each in listed:
        if first.setdefault(each.name, each) is not each:
            LOG.warning("%s: the tool %s is listed twice; the first one counts", server, each.name)
    wanted = {name: _valid(prefix + name) for name in first}
    taken = {prefix + name for name in first if wanted[name] == prefix + name}
    found: list[tuple[str, Any]] = []
    for name, each in first.items():
        unique = own = wanted[name]
        number = 1
        while own != prefix + name and unique in taken:
            number += 1
            suffix = f"_{number}"
            unique = own[: _LONGEST_NAME - len(suffix)] + suffix
        if number > 1:
            LOG.warning("%s: the tool %s is offered as %s", server, name, unique)
        taken.add(unique)
        found.append((unique, each))
    return found


def _valid(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST_NAME] or "tool"


class McpTool(GuardedTool):
    """One tool of an MCP server, which checks the arguments itself."""

    def __init__(
        self,
        server_name: str,
        server: McpConnection,
        listed: Any,
        *,
        name: str,
        durable: bool,
        timeout: float | None,
    ) -> None:
        self._server_name = server_name
        self._server = server
        self._remote_name: str = listed.name
        self.name = name
        described_as = listed.description or listed.title or ""
        if not name.endswith(listed.name):  # of which little is left in another script
            described_as = f"{listed.name}: {described_as}" if described_as else listed.name
        self.description = described_as
        self.input_schema = {"type": "object", **listed.input_schema}
        self.durable = durable
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"{self._remote_name} of {self._server_name}"

    async def carry_out(self, arguments: dict[str, Any], call: Call) -> Any:
        """Forward the call, and return the structured result of the server, else its text.

        Raises:
            ToolError: the server's tool has failed; the message is its text.
            Exception: the server does not answer.
        """

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            amount = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            call.progress(message or amount)

        try:
            result = await self._server.call(self._remote_name, arguments, on_progress)
        except Exception as error:
            LOG.warning("tool %s of %s failed", self.name, self._server_name, exc_info=True)
            raise ToolError(f"{self.name}: {described(error)}") from error
        content: list[dict[str, Any]] = [
            block.model_dump(mode="json", by_alias=True, exclude_none=True)
            for block in result.content
        ]
        is_text = all(block.get("type") == "text" for block in content)
        text = "\n".join(str(block.get("text", "")) for block in content)
        if result.is_error:
            raise ToolError(text or f"{self.name}: failed, and gave no reason")
        if not is_text:
            return content
        return text if result.structured_content is None else result.structured_content


def _made_fit(tool: McpTool) -> bool:
    """Give a tool a form that servers take, as its program cannot; return false if there is none.

    Its own server checks the arguments, so a smaller schema may replace one that is refused.
    """
    own, refusal = tool.input_schema, _refusal(tool)
    if refusal is None:
        return True
    tool.description = tool.description[:_LONGEST_DESCRIPTION]
    tool.description = tool.description.encode("utf-8", "replace").decode()
    for schema in (own, _names_only(own), {"type": "object"}):
        tool.input_schema = schema
        if _refusal(tool) is None:
            LOG.warning("%r: its definition is cut: %s", tool, refusal)
            return True
    LOG.warning("%r: it is not offered: %s", tool, refusal)
    return False


def _names_only(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the names of the parameters, and which are required; nothing of their values."""
    properties, required = schema.get("properties"), schema.get("required")
    names = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
    wanted = cast("list[Any]", required) if isinstance(required, list) else []
    bare: dict[str, Any] = {"type": "object"}
    bare["properties"] = {name: {} for name in names}
    bare["required"] = [name for name in wanted if name in names]
    return bare


def _refusal(tool: McpTool) -> str | None:
    """Return why servers refuse the definition of a tool; None: they take it."""
    import msgspec

    from oubliette.config.schema import CallersConfig
    from oubliette.contract.agent_options import ToolDefinition
    from oubliette.json_values import check_values
    from oubliette.tools.tools_offered_by_caller import normalised

    try:
        check_values(tool.definition, envelope=-4)
        given = msgspec.convert(tool.definition, ToolDefinition)
        normalised((given,), "caller", CallersConfig(), "tools")
    except (InvalidParameter, msgspec.ValidationError) as error:
        return str(error)
    return None


_OPEN_SECONDS: Final = 30.0
_READ_SECONDS: Final = 3600.0  # of silence in a response, while a tool works


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
        target: a URL (Streamable HTTP); a list with a program and its arguments (stdio), or
            `StdioServerParameters` with its environment; a server of the `mcp` package in this
            process; or its `Client` or `ClientSession`. One that is connected already is used as
            it is and stays connected.
        headers: HTTP headers for a URL, such as `Authorization`.
        prefix: stands before the name of each tool.
        durable: calls wait for a program that is not there, until their deadline.
        timeout: seconds after which a call fails; by default it may take until its deadline.

    Raises:
        BadTool: the target is none of these, or headers were given for one without HTTP.
    """
    check_timeout(timeout, "mcp")
    if isinstance(target, str):
        if not target.startswith(("http://", "https://")):
            quoted = "the target" if "@" in target else ids.shown(target)  # a password, perhaps
            raise BadTool(f"mcp: {quoted} is no URL", hint='a program is a list: ["uvx", "NAME"]')
        if not _has_place(target):
            raise BadTool(
                "mcp: the host or port of the URL is not valid",
                hint="in a user or password, / @ : ? # and % are written percent-encoded",
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
            return f"mcp({bare_url(target)})"
        return f"mcp({type(target).__name__})"

    async def open(self, stack: AsyncExitStack) -> list[PreparedTool]:
        """Connect the server and list its tools; they can be called until `stack` is closed.

        Raises:
            BadTool: the server cannot be reached, or fails to list its tools.
        """
        server = McpConnection(repr(self), self._connected)
        try:
            with anyio.fail_after(_OPEN_SECONDS):
                link = await server.opened()
                found = await listed(await link.connected(), repr(self))
        except BaseException as error:
            await server.close()
            if isinstance(error, TimeoutError):
                raise BadTool(f"{self!r}: no answer within {_OPEN_SECONDS:g} s") from None
            if isinstance(error, BadTool) or not isinstance(error, Exception):
                raise
            raise BadTool(f"{self!r}: cannot be opened: {described(error)}") from error
        stack.push_async_callback(server.close)
        tools = [
            McpTool(
                repr(self),
                server,
                each,
                name=name,
                durable=self._durable,
                timeout=self._timeout,
            )
            for name, each in named(found, self._prefix, repr(self))
        ]
        return [tool for tool in tools if await anyio.to_thread.run_sync(_made_fit, tool)]

    async def _connected(self, stack: AsyncExitStack, link: McpLink) -> Any:
        """Return a connected client of the server; one that is made here ends with `stack`.

        `link` learns when it is of no use any more.

        Raises:
            BadTool: there is no MCP library, or it cannot connect to such a target.
        """
        try:
            # Takes long enough to be noticed on the loop.
            await anyio.to_thread.run_sync(importlib.import_module, "mcp")
            from mcp import Client, ClientSession, StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as error:
            raise BadTool(f"mcp: {error}", hint="pip install mcp") from None
        target: Any = self._target
        by_way = ""
        if isinstance(target, ClientSession):
            return target
        if isinstance(target, Client):
            return target if _is_connected(target) else await stack.enter_async_context(target)
        if isinstance(target, str):
            import httpx2

            client = await http_client(
                httpx2.URL(target),
                headers=self._headers,
                timeout=httpx2.Timeout(_OPEN_SECONDS, read=_READ_SECONDS),
                event_hooks={"response": [link.noted]},
            )
            http = await stack.enter_async_context(client)
            by_way = by_proxy(httpx2.URL(target))
            target = streamable_http_client(target, http_client=http)
        elif isinstance(target, Sequence):
            command, *arguments = cast("Sequence[str]", target)
            target = StdioServerParameters(command=command, args=arguments)
        if isinstance(target, StdioServerParameters):
            target = noting_end(stdio_client(target, errlog=_standard_error()), link.lost.set)
        try:
            return await stack.enter_async_context(Client(target))
        except Exception as error:
            if not by_way:
                raise
            reason = f"{described(error)}{by_way}"
            raise BadTool(f"{self!r}: cannot be opened: {reason}") from error


def _has_place(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # it quotes parts of the URL
        return False


def _is_connected(client: Any) -> bool:
    try:
        return client.session is not None
    except RuntimeError:
        return False


def _standard_error() -> TextIO:
    """Return where the program's own errors are written, if a subprocess can write there too."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # that of a notebook
        return cast("TextIO", sys.__stderr__)
    return sys.stderr
