"""Agents in one function each, and a program beside them, as users have them in one file."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import oubliette.errors
from oubliette import __version__
from oubliette.api.own_agent import agent


class Trouble(oubliette.errors.OublietteError):
    """An error of the program beside the agents."""


@agent
async def echo(turn):
    """Say it again, in two pieces."""
    yield "You said "
    yield turn.prompt


@agent(name="whole")
async def whole_answer(turn):
    """All of the answer at once."""
    return f"{turn.session_id} {turn.number} {turn.workspace} {turn.model} {os.getcwd()}"


@agent
async def caller(turn):
    """Call the tool that the prompt names."""
    tool, _, arguments = turn.prompt.partition(" ")
    names = [each["name"] for each in await turn.tools()]
    yield f"I have {tool in names}. "
    try:
        result = await turn.call(tool, json.loads(arguments))
    except oubliette.ToolFailed as error:
        yield f"It failed: {error}"
    else:
        yield f"It is {result!r}."


@agent
async def worker(turn):
    """Do something with a tool of its own, report what it cost, and remember it."""
    with turn.tool("write", {"path": "notes"}) as step:
        Path(turn.workspace, "notes").write_text(turn.prompt, encoding="utf-8")
        step.result = "written"
    turn.usage(cost_usd=0.25, input_tokens=3, output_tokens=4)
    yield f"{len(turn.history)} before: {[each.answer for each in turn.history]}"


@agent
async def careful(turn):
    """Ask before it goes on."""
    yield "Good." if await turn.ask(turn.prompt) else "Then not."


@agent
async def patient(turn):
    """Wait until it is interrupted, and tidy up."""
    yield "waiting"
    try:
        await asyncio.Event().wait()
    finally:
        Path(turn.workspace, "tidied").write_text(str(turn.cancelled), encoding="utf-8")


@agent
async def clumsy(turn):
    """Fail, or end its whole process."""
    if turn.prompt == "exit":
        os._exit(3)
    print("a stray word on stdout")
    yield "well "
    if turn.prompt == "break":
        raise LookupError("no such thing")
    yield f"{len(turn.history)}"


AGENTS = (echo, whole_answer, caller, worker, careful, patient, clumsy)

if __name__ == "__main__":
    raise Trouble(f"no program of {__version__}")
