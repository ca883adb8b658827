"""A bare server of the official SDK with one trivial tool, on a plain uvicorn: what MCP costs alone.

async with sdk_floor() as (url, pid): ...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[2]
TOOL = "nothing"


def serve() -> None:
    """Serve until told to end; the first line of output is the URL."""
    import mcp_types as t
    import uvicorn
    from mcp.server.lowlevel import Server

    async def listed(*_: Any) -> t.ListToolsResult:
        return t.ListToolsResult(tools=[t.Tool(name=TOOL, input_schema={"type": "object"})])

    async def called(*_: Any) -> t.CallToolResult:
        return t.CallToolResult(
            content=[t.TextContent(text='{"n":1}')], structured_content={"n": 1}
        )

    app = Server("bare", on_list_tools=listed, on_call_tool=called).streamable_http_app()
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    # Its client rests between two slices of calls.
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listener])


@contextlib.asynccontextmanager
async def sdk_floor() -> AsyncIterator[tuple[str, int]]:
    """The server as a process of its own: its URL and its process id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.sdk_floor", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield line.decode().strip(), process.pid
    finally:
        process.terminate()
        await process.wait()


def processor_ms(pid: int) -> float:
    """Milliseconds of the processor that a process has used so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    serve()
