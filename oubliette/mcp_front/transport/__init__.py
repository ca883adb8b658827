"""HTTP below MCP: connections, requests, responses."""
