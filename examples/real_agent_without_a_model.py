"""A real agent, a real server, your tool, and no model: how to test the tools that you provide.

    python examples/real_agent_without_a_model.py opencode-acp
    python examples/real_agent_without_a_model.py droid

The program has to be installed (docs/agents.md), on PATH or given as the second argument.
"""

import asyncio
import sys

import oubliette
from oubliette.testing.model_server import ModelServer
from oubliette.testing.server import ServerProcess

OURS = {"opencode": "oubliette_", "opencode-acp": "oubliette_", "droid": "oubliette___"}
"""What the names of our MCP server's tools begin with, as the agent's model sees them."""


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


async def main(agent: str, program: str) -> None:
    section = agent.removesuffix("-acp")
    async with ModelServer() as model:
        settings = {f"{section}.base_url": model.url, f"{section}.model": "scripted"}
        if program:
            settings[f"{section}.path"] = program
        async with ServerProcess(settings=settings) as server:
            await server.start()
            token = server.token("write")
            async with oubliette.connect(server.url, token, caller_id="calc") as ob:
                project = await ob.project("example")
                prompt = f'call {OURS[agent]}calc_add {{"a": 20, "b": 22}}'
                answer = await project.run(prompt, agent=agent, tools=[add])
                print(agent, "says:", answer.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
