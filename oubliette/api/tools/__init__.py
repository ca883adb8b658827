"""Tools that a program provides to agents: functions, objects, and other MCP servers."""

from oubliette.api.tools.callables import CallableTool
from oubliette.api.tools.context import Call
from oubliette.api.tools.decorator import tool
from oubliette.api.tools.errors import BadTool, ToolCallRefused, ToolError
from oubliette.api.tools.mcp_tools import mcp
from oubliette.api.tools.objects import opened_table, tool_table
from oubliette.api.tools.prepared import PreparedTool, ToolSource

__all__ = (
    "BadTool",
    "Call",
    "CallableTool",
    "PreparedTool",
    "ToolCallRefused",
    "ToolError",
    "ToolSource",
    "mcp",
    "opened_table",
    "tool",
    "tool_table",
)
