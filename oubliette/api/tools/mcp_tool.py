"""`McpTool`: one tool of an MCP server, to which its calls are forwarded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from oubliette.api.tools.context import LOG
from oubliette.api.tools.errors import ToolError
from oubliette.api.tools.guarded import GuardedTool, described

if TYPE_CHECKING:
    from oubliette.api.tools.context import Call
    from oubliette.api.tools.mcp_link import McpConnection

_LONGEST_NAME: Final = 128  # characters


class McpTool(GuardedTool):
    """One tool of an MCP server, which checks the arguments itself."""

    def __init__(
        self,
        name: str,
        server: McpConnection,
        listed: Any,
        *,
        prefix: str,
        durable: bool,
        timeout: float | None,
    ) -> None:
        self._server_name = name
        self._server = server
        self._remote_name: str = listed.name
        # Names of other servers may have characters that agents' clients refuse.
        self.name = re.sub(r"[^A-Za-z0-9_.-]", "_", prefix + listed.name)[:_LONGEST_NAME]
        self.description = listed.description or listed.title or ""
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
