"""Plain tool calls, answered without the MCP SDK."""
