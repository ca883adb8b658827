"""The real tool table at the HTTP door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.tools import registry

if TYPE_CHECKING:
    from oubliette.mcp_front.interfaces import ToolAnswer
    from oubliette.tools.auth.scopes import Scope
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext, Tool


class ToolAdapter:
    """A `ToolTable` of `oubliette.tools`. Its house's `listen` should be `McpApp.listening`."""

    def __init__(self, services: ToolServices) -> None:
        self._services = services
        self._listed: dict[Scope, list[dict[str, Any]]] = {}

    def has(self, name: str) -> bool:
        """Whether there is such a tool at this door."""
        found = registry.TABLE.get(name)
        return found is not None and "http" in found.doors

    def streams(self, name: str) -> bool:
        """Whether this tool may answer as a stream."""
        return registry.TABLE[name].streamed

    def list(self, context: CallContext) -> list[dict[str, Any]]:
        """What this key may call, as the wire has it; made once for each level."""
        scope = context.scope
        key = type(scope)(level=scope.level, project=None if scope.project is None else "*")
        found = self._listed.get(key)
        if found is None:
            found = [_on_the_wire(tool) for tool in registry.listed(scope, "http")]
            self._listed[key] = found
        return found

    async def call(
        self, context: CallContext, name: str, arguments: dict[str, Any] | None
    ) -> ToolAnswer:
        """Call one; its failures are answers."""
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
