"""An MCP server over stdio, for the tests of forwarding: run as a program."""

from __future__ import annotations

import os

from mcp.server import MCPServer

server = MCPServer("stdio")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def greeting() -> str:
    """Show a variable of the environment."""
    return os.environ["GREETING"]


@server.tool()
def stop() -> str:
    """End the server's process in the middle of a call."""
    os._exit(3)


if __name__ == "__main__":
    server.run("stdio")
