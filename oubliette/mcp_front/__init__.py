"""The MCP server over Streamable HTTP, for both generations (DESIGN 4.3)."""
