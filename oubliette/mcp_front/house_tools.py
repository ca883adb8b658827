"""The real tool table at the HTTP door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.tools import table

if TYPE_CHECKING:
    from oubliette.mcp_front.ports import Answer
    from oubliette.tools.house import House
    from oubliette.tools.scopes import Scope
    from oubliette.tools.tool import CallContext, Tool


class HouseTools:
    """A `ToolTable` of `oubliette.tools`. Its house's `listen` should be `Front.listening`."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._listed: dict[Scope, list[dict[str, Any]]] = {}

    def has(self, name: str) -> bool:
        """Whether there is such a tool at this door."""
        found = table.TABLE.get(name)
        return found is not None and "http" in found.doors

    def streams(self, name: str) -> bool:
        """Whether this tool may answer as a stream."""
        return table.TABLE[name].streamed

    def list(self, context: CallContext) -> list[dict[str, Any]]:
        """What this key may call, as the wire has it; made once for each level."""
        scope = context.scope
        key = type(scope)(level=scope.level, project=None if scope.project is None else "*")
        found = self._listed.get(key)
        if found is None:
            found = [_on_the_wire(tool) for tool in table.listed(scope, "http")]
            self._listed[key] = found
        return found

    async def call(
        self, context: CallContext, name: str, arguments: dict[str, Any] | None
    ) -> Answer:
        """Call one; its failures are answers."""
        return await table.call(self._house, context, name, arguments)


def _on_the_wire(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": table.input_schema(tool),
        "outputSchema": table.output_schema(tool),
        "annotations": {
            "readOnlyHint": tool.read_only,
            "destructiveHint": tool.destructive,
            "idempotentHint": tool.read_only,
            "openWorldHint": False,
        },
    }
