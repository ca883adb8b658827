"""Program that provides a tool to an agent of a server.

oubliette serve &
export OUBLIETTE_KEY=$(oubliette token create --scope write)
python examples/provide_a_tool.py http://127.0.0.1:8080/mcp

The tool runs in this program, on any machine; the server needs no way to reach it.
"""

import asyncio
import sys

import oubliette


async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


async def main(url: str) -> None:
    async with oubliette.connect(url, caller_id="example") as ob:
        project = await ob.project("example")
        session = await project.spawn(
            'call example_add {"a": 20, "b": 22}', agent="scripted", tools=[add]
        )
        async for event in session.events():
            match event:
                case oubliette.ToolCall(tool=tool, arguments=arguments):
                    print("the agent calls:", tool, arguments)
                case oubliette.Message(text=text):
                    print("the agent says:", text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
