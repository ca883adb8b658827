"""The smallest program: the system in this process, one prompt, one answer.

    python examples/hello.py
    python examples/hello.py "Which files are here?"    # with an agent that has a model

Without a configured model the scripted agent answers, for which `say …` is a prompt.
"""

import asyncio
import sys

import oubliette


async def main(prompt: str) -> None:
    async with oubliette.open(temporary=True) as ob:
        project = await ob.project("hello")
        answer = await project.run(prompt)
        print(answer.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "say Hello from a sandbox."))
