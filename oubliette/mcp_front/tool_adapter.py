"""ToolAdapter, the tools that are available over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.tools import registry

if TYPE_CHECKING:
    from oubliette.tools.auth.scopes import Scope
    from oubliette.tools.schema.tool_result import ToolResult
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext, Tool


class ToolAdapter:
    """The tools that are available over HTTP.

    The `listen` of its `ToolServices` has to be `McpApp.listening`.
    """

    def __init__(self, services: ToolServices) -> None:
        self._services = services
        self._listed: dict[Scope, list[dict[str, Any]]] = {}

    def has(self, name: str) -> bool:
        """Whether the tool exists and is available over HTTP."""
        found = registry.TABLE.get(name)
        return found is not None and "http" in found.transports

    def streams(self, name: str) -> bool:
        return registry.TABLE[name].streamed

    def list(self, context: CallContext) -> list[dict[str, Any]]:
        """Return the tools that this key may call, as clients get them; cached for each scope."""
        scope = context.scope
        key = type(scope)(level=scope.level, project=None if scope.project is None else "*")
        found = self._listed.get(key)
        if found is None:
            found = [_on_the_wire(tool) for tool in registry.listed(scope, "http")]
            self._listed[key] = found
        return found

    async def project_of_workspace(self, context: CallContext, workspace_id: str) -> str | None:
        """The project of a workspace, if this key reaches it."""
        record = await self._services.reader.workspace(workspace_id)
        if record is None or record.deleted_at is not None:
            return None
        return record.project_id if context.scope.reaches(record.project_id) else None

    async def call(
        self, context: CallContext, name: str, arguments: dict[str, Any] | None
    ) -> ToolResult:
        """Call a tool. A failure is an answer with `is_error`, or an OublietteError."""
        return await registry.call(self._services, context, name, arguments)


def _on_the_wire(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": registry.input_schema(tool),
        "outputSchema": registry.output_schema(tool),
        "annotations": {
            "readOnlyHint": tool.read_only,
            "destructiveHint": tool.destructive,
            "idempotentHint": tool.read_only,
            "openWorldHint": False,
        },
    }
