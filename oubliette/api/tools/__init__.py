"""Tools that a program provides to agents: functions, objects, and other MCP servers."""
