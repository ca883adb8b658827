"""An MCP server over stdio, for the tests of forwarding: run as a program."""

from __future__ import annotations

import asyncio
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


@server.tool()
async def leave() -> str:
    """End the server's process a moment after this call."""
    asyncio.get_running_loop().call_later(0.2, os._exit, 0)
    return "bye"


if __name__ == "__main__":
    server.run("stdio")
