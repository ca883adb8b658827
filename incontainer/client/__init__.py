"""`oubliette-client`: the MCP server that runs beside each agent."""
