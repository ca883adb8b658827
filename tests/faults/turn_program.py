"""A program that is killed in the middle of a turn: `python -m tests.faults.turn_program SPEC`.

It starts a session, or goes on with the one that the spec names, and prints each event.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

import oubliette
from tests.consent import delete_with_all
from tests.faults.shop_program import say


async def main(spec: dict[str, Any]) -> None:
    """Follow the session's events to the end of its turn, then print the result."""
    may_answer = asyncio.Event()

    @oubliette.tool(durable=spec["durable"])
    async def look(what: str, *, call: oubliette.Call) -> str:
        """Look something up, once it may."""
        say(asked=what, request=call.request_id)
        await may_answer.wait()
        return f"seen {what}"

    if spec["answers"]:
        may_answer.set()
    async with oubliette.open(spec["home"], config=spec["config"], on_exit=spec["on_exit"]) as ob:
        if spec.get("session") is None:
            project = await ob.project("one", init_git=False)
            session = await project.spawn(spec["prompt"], tools=[look])
            say(session=session.id)
        else:
            session = await ob.session(spec["session"], tools=[look])
        async for event in session.events(after=spec.get("after", -1)):
            say(event=event.index, type=event.type, text=getattr(event, "text", None))
        assert session.turn is not None
        result = await session.turn
        calls = [(each.tool, each.result) for each in result.tool_calls]
        say(result=result.text, status=result.status, calls=calls)
        if spec["on_exit"] == "end":
            await session.end()
            await delete_with_all(ob.call, (await ob.project("one")).id)
    say(finished=True)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes())))
