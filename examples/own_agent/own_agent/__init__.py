"""An agent that counts words: `own_agent.counting` does the work, `tools.json` lists its tools."""

import json
from pathlib import Path

import oubliette
from own_agent.counting import count

TOOLS = json.loads((Path(__file__).parent / "tools.json").read_text(encoding="utf-8"))


@oubliette.agent(name="word-counter")
async def word_counter(turn: oubliette.AgentTurn):
    """Count the words of the files that the prompt names, or call a tool of its caller."""
    command, _, rest = turn.prompt.partition(" ")
    if command == "count":
        for name in rest.split():
            with turn.tool(TOOLS["count"], {"path": name}) as step:
                step.result = count(Path(turn.workspace, name))
            yield f"{name}: {step.result} words\n"
    elif command == "call":
        tool, _, arguments = rest.partition(" ")
        try:
            yield str(await turn.call(tool, json.loads(arguments or "{}")))
        except oubliette.ToolFailed as error:
            yield f"{tool} failed: {error}"
    else:
        yield f"This is message {len(turn.history) + 1} of our conversation."
