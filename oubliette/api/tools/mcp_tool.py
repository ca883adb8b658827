"""`McpTool`: one tool of an MCP server, to which its calls are forwarded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from oubliette.api.tools.context import LOG
from oubliette.api.tools.errors import ToolError
from oubliette.api.tools.guarded import GuardedTool, described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.api.tools.context import Call
    from oubliette.api.tools.mcp_link import McpConnection

_LONGEST_NAME: Final = 128  # characters


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
