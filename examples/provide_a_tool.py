"""Program that provides a tool to an agent, with the official MCP SDK for Python.

oubliette serve &
export OUBLIETTE_KEY=$(oubliette token create --scope write)
python examples/provide_a_tool.py http://127.0.0.1:8080/mcp
"""

import asyncio
import os
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

TOOL = {
    "name": "add",
    "description": "Add two numbers",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
}
CALLER = {"caller_id": "example", "caller_tools": [TOOL]}


async def main(url: str) -> None:
    done = asyncio.Event()

    async def answer(event: dict) -> None:
        result = event["arguments"]["a"] + event["arguments"]["b"]
        reply = {"session_id": event["session_id"], "request_id": event["request_id"]}
        await client.call_tool("caller_tool_response", {**reply, "result": result})

    async def on_event(params) -> None:
        event = params.data
        if event["type"] == "caller_tool_request":
            tasks.create_task(answer(event))  # never answer inside the callback
        elif event["type"] == "message":
            print("the agent says:", event["text"])
        elif event["type"] == "completion":
            done.set()

    headers = {"Authorization": f"Bearer {os.environ['OUBLIETTE_KEY']}"}
    http = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300))
    client = Client(
        streamable_http_client(url, http_client=http), logging_callback=on_event, log_level="info"
    )
    async with http, client, asyncio.TaskGroup() as tasks:
        listener = tasks.create_task(client.call_tool("caller_listen", CALLER))
        project = await client.call_tool("project_create", {"name": f"example-{os.getpid()}"})
        await client.call_tool(
            "session_spawn",
            {
                "project_id": project.structured_content["id"],
                "prompt": 'call example_add {"a": 20, "b": 22}',
                "context": CALLER,
            },
        )
        await asyncio.wait_for(done.wait(), 60)
        listener.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
