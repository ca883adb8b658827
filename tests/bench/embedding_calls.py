"""What a program with the API pays for calls and events: `python -m tests.bench.embedding_calls`.

    python -m tests.bench.embedding_calls calls embedded 500
    python -m tests.bench.embedding_calls follow embedded 1000

`calls` prints the median milliseconds of a tool call, from the agent to a function of the program
and back, measured by the agent. `follow` runs so many sessions, and then follows the events of all
of them at once; it prints a line of JSON. The door is `embedded` (all in this process) or
`connected` (over HTTP, to a server process).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import oubliette
from oubliette.testing.server import ServerProcess
from tests.faults.shop_kills import embedded_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AT_ONCE: Final = 8  # sessions that are started
SETTINGS: Final = {
    "agents.default": "scripted",
    "sessions.max_live_per_project": 2000,
    "callers.calls_per_second": 100_000,
    "callers.calls_burst": 100_000,
    "callers.max_calls_in_flight": 5000,
}


@contextlib.asynccontextmanager
async def opened(door: str) -> AsyncIterator[oubliette.Oubliette]:
    """An `Oubliette` on a new home."""
    async with ServerProcess(settings=SETTINGS) as server:
        if door == "connected":
            await server.start()
            async with oubliette.connect(server.url, server.token("write")) as ob:
                yield ob
            return
        config = {**embedded_settings(server), **SETTINGS}
        async with oubliette.open(server.home, config=config) as ob:
            yield ob


async def calls(door: str, number: int) -> list[float]:
    """Milliseconds of each of so many calls, one after the other."""

    async def echo(n: int) -> int:
        """Return the number."""
        return n

    async with opened(door) as ob:
        project = await ob.project("bench", init_git=False)
        lines = f'repeat 50 call echo {{"n": 1}}\nrepeat {number} call echo {{"n": 1}}'
        session = await project.spawn(lines, tools=[echo])
        said = [e.text async for e in session.events() if isinstance(e, oubliette.Message)]
        found = json.loads(said[-1])
        assert (found["count"], found["errors"]) == (number, 0), found
        return found["elapsed_ms"]


async def follow(door: str, number: int, live: int = 20) -> dict[str, Any]:
    """Figures of following so many sessions, of which the last ones are at work meanwhile."""
    async with opened(door) as ob:
        project = await ob.project("bench", init_git=False)
        places = asyncio.Semaphore(AT_ONCE)
        began = time.perf_counter()

        async def past() -> str:
            async with places:
                return (await project.run("emit 20 40\nsay done")).session_id

        ended = await asyncio.gather(*(past() for _ in range(number - live)))
        made = time.perf_counter() - began
        prompt = "sleep 1\n" + "emit 20 40\nsleep 0.1\n" * 20
        alive = [await project.spawn(prompt) for _ in range(live)]
        sessions = [*[await ob.session(each) for each in ended], *alive]
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        read = 0

        async def one(session: oubliette.Session) -> None:
            nonlocal read
            async for _ in session.events():
                read += 1

        await asyncio.gather(*(one(each) for each in sessions))
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_SELF)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "door": door,
            "sessions": number,
            "live": live,
            "made_s": round(made, 1),
            "events": read,
            "seconds": round(seconds, 2),
            "events_s": round(read / seconds),
            "cpu_ms_an_event": round(busy / read * 1e3, 3),
            "cpu_s": round(busy, 2),
            "grown_mb": round((after.ru_maxrss - before.ru_maxrss) / 1024, 1),
            "most_mb": round(after.ru_maxrss / 1024, 1),
        }


def main(what: str, door: str, number: str) -> None:
    """Measure, and print."""
    if what == "follow":
        print(json.dumps(asyncio.run(follow(door, int(number)))))
    else:
        print(statistics.median(asyncio.run(calls(door, int(number)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
