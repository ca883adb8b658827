"""A program whose agents make refunds, to be killed at any moment: `python -m … shop_program SPEC`.

Each refund is written through `call.transaction()`, into the file that keeps the answers too. The
program asks for one session after the other, under keys, until a line `finish` comes on its stdin;
it then waits for those that have begun, ends all, and deletes its project. Started again, it does
what it has not yet noted as done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any, Final

import oubliette
from oubliette.errors import Unavailable

AT_ONCE: Final = 3  # sessions
CALLS: Final = 6  # refunds that each of them asks for
CALLER: Final = "shop"
LEDGER: Final = "CREATE TABLE IF NOT EXISTS refunds (number TEXT, request_id TEXT)"


@oubliette.tool(durable=True)
def refund(number: str, *, call: oubliette.Call) -> str:
    """Refund an order, in a worker thread."""
    database = call.transaction()
    database.execute("INSERT INTO refunds VALUES (?, ?)", (number, call.request_id))
    return number


@oubliette.tool(durable=True)
async def refund_later(number: str, *, call: oubliette.Call) -> str:
    """Refund an order, on the event loop and after a while."""
    await asyncio.sleep(0.02)
    database = call.transaction()
    database.execute("INSERT INTO refunds VALUES (?, ?)", (number, call.request_id))
    await asyncio.sleep(0.01)
    return number


def order(session: int, call: int) -> str:
    """Return the number of an order."""
    return f"S{session}-{call}"


def prompt(session: int) -> str:
    """Return what the agent of a session is to do."""
    lines: list[str] = []
    for number in range(CALLS):
        tool = "refund" if (session + number) % 2 else "refund_later"
        lines += [
            f'call {CALLER}_{tool} {{"number": "{order(session, number)}"}}',
            f"sleep {0.02 * (number % 3)}",
        ]
    return "\n".join([*lines, "say done"])


class Shop:
    """The program's work: sessions one after the other, some of them at the same time."""

    def __init__(self, ob: oubliette.Oubliette, folder: Path) -> None:
        self._ob = ob
        self._notes = folder / "done.txt"
        self._begun = folder / "begun.txt"
        noted = self._notes.read_text().split() if self._notes.exists() else []
        self._done = {int(each) for each in noted}
        begun = self._begun.read_text().split() if self._begun.exists() else []
        self._open = sorted({int(each) for each in begun} - self._done)
        self._next = max(map(int, begun), default=-1) + 1
        self.finishing = False

    async def work(self, project: oubliette.Project, caller: oubliette.Caller) -> None:
        """Run sessions until it is told to finish."""

        async def worker() -> None:
            while self._open or not self.finishing:
                await self._run(project, caller, self._take())

        async with asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(worker())

    def _take(self) -> int:
        if self._open:
            return self._open.pop(0)
        number = self._next
        self._next += 1
        with self._begun.open("a") as notes:
            notes.write(f"{number}\n")
        return number

    async def _run(self, project: oubliette.Project, caller: oubliette.Caller, number: int) -> None:
        key = f"session-{number}"
        session = await project.spawn(prompt(number), caller=caller, idempotency_key=key)
        assert session.turn is not None
        answer = await session.turn
        results = [each.result for each in answer.tool_calls]
        expected = [order(number, each) for each in range(CALLS)]
        if (answer.text, results) != ("done", expected):
            say(wrong=f"{session.id}: {answer.text!r}, {results}")
        while True:
            with contextlib.suppress(Unavailable):
                await session.end()
                break
        with self._notes.open("a") as notes:
            notes.write(f"{number}\n")


def say(**what: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


def opened(spec: dict[str, Any]) -> oubliette.Oubliette:
    """Return the system, here or on a server."""
    if spec.get("url"):
        return oubliette.connect(
            spec["url"], spec["token"], on_exit="keep", caller_id=f"{CALLER}-program"
        )
    return oubliette.open(spec["home"], config=spec["config"], on_exit=spec["on_exit"])


async def main(spec: dict[str, Any]) -> None:
    """Work until told to finish."""
    folder = Path(spec["folder"])
    ledger = folder / "shop.db"
    with contextlib.closing(sqlite3.connect(ledger)) as database, database:
        database.execute(LEDGER)
    loop = asyncio.get_running_loop()
    async with opened(spec) as ob, ob.caller(CALLER, [refund, refund_later], once=ledger) as caller:
        project = await ob.project("shop", init_git=False)
        shop = Shop(ob, folder)

        def told() -> None:
            shop.finishing = True
            loop.remove_reader(sys.stdin)

        loop.add_reader(sys.stdin, told)
        say(ready=True)
        await shop.work(project, caller)
        await project.delete()
    say(finished=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
