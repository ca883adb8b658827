"""The MCP server over Streamable HTTP, for both generations."""
