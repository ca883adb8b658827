"""What a call of a caller's tool costs on a cluster, beside the same on one machine with SQLite.

    python -m tests.bench.cluster_calls [--rounds 5] [--calls 100]

Three kinds take turns: a server with SQLite; a cluster of two nodes, with the caller on the
session's node; and with the caller on the other node. All servers are processes of their own, as is
the client. Times are those of the agent, from its call to its answer; those of requests are of a
client that asks for what the home of the project alone can answer. PostgreSQL flushes its log.
Processor time is that of all servers and of PostgreSQL, a call: a busy machine adds little to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.bench.relay import CALLERS, middle, server, turn
from tests.bench.sdk_floor import processor_ms
from tests.bench.servers_on_ray import ServersOnRay

if TYPE_CHECKING:
    from tests.callers import Caller

KINDS = ("sqlite", "local", "across")
MODE = "bare http"
WARM = 10
LIMIT_MS = 3.0
"""At most so many milliseconds more with the caller on another node."""
_SETTINGS = {
    "sessions.max_live_per_project": 1000,
    "callers.max_calls_in_flight": 1000,
    "callers.calls_per_second": 100_000,  # what is measured is not the limit
    "callers.calls_burst": 100_000,
    "agents.default": "scripted",
}


async def calls(caller: Caller, project: str, count: int) -> list[float]:
    """Milliseconds of calls, one after the other, as their agent has measured them."""
    said = await turn(caller, project, f'repeat {count} call {caller.caller_id}_echo {{"n": 1}}')
    assert said[0]["errors"] == 0 and said[0]["count"] == count, said
    return said[0]["elapsed_ms"]


async def requests(caller: Caller, project: str, count: int) -> list[float]:
    """Milliseconds of requests that the home of the project answers, one after the other."""
    listed = await caller.call("session_list", project_id=project, limit=1)
    session_id = listed["sessions"][0]["session_id"]
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        await caller.call("session_get", session_id=session_id)
        times.append((time.perf_counter() - started) * 1e3)
    return times


class Found:
    """The times of a kind, a list for each round, and what it took of processors."""

    def __init__(self) -> None:
        self.rounds: list[list[float]] = []
        self.requests: list[float] = []
        """Median of the requests of each round."""
        self.processor_ms: list[float] = []
        """Of a call, in each round."""

    @property
    def ms(self) -> list[float]:
        return [each for times in self.rounds for each in times]

    @property
    def medians(self) -> list[float]:
        return [middle(times) for times in self.rounds]


async def measure(cluster: ServersOnRay, rounds: int, count: int) -> dict[str, Found]:
    """What was found of each kind."""
    tools = {"echo": lambda n=0: {"n": n}}
    found = {kind: Found() for kind in KINDS}
    key = cluster.key()
    async with server() as (url, token, pid):

        def busy(kind: str) -> float:
            return processor_ms(pid) if kind == "sqlite" else cluster.processor_ms()

        first = cluster.urls[cluster.names[0]]
        async with CALLERS[MODE](url, token) as alone, CALLERS[MODE](first, key) as any_node:
            here = (await alone.call("project_create", name="bench"))["id"]
            there = (await any_node.call("project_create", name="bench"))["id"]
        home = cluster.home_of(there)
        other = next(name for name in cluster.names if name != home)
        places = {
            "sqlite": (url, token, here),
            "local": (cluster.urls[home], key, there),
            "across": (cluster.urls[other], key, there),
        }
        for number in range(rounds + 1):
            for kind, (at, with_key, project) in places.items():
                made = CALLERS[MODE](at, with_key, caller_id=f"{kind}{number}", tools=tools)
                async with made as caller:
                    await caller.listen()
                    await calls(caller, project, WARM)
                    before = busy(kind)
                    times = await calls(caller, project, count)
                    if number:  # the first round loads what is loaded late
                        found[kind].rounds.append(times)
                        found[kind].processor_ms.append((busy(kind) - before) / count)
                    asked = await requests(caller, project, count)
                    if number:
                        found[kind].requests.append(middle(asked))
    return found


def report(found: dict[str, Found]) -> dict[str, Any]:
    """Medians of all calls, their ratios, and what the other node adds."""
    told: dict[str, Any] = {}
    for kind, of in found.items():
        told[f"{kind}_ms"] = round(middle(of.ms), 2)
        told[f"{kind}_p99_ms"] = round(middle(of.ms, 0.99), 2)
        told[f"{kind}_request_ms"] = round(statistics.median(of.requests), 2)
        told[f"{kind}_processor_ms"] = round(statistics.median(of.processor_ms), 2)
    for kind in KINDS[1:]:
        pairs = zip(found[kind].medians, found["sqlite"].medians, strict=True)
        told[f"{kind}_of_sqlite"] = round(statistics.median(a / b for a, b in pairs), 2)
    pairs = zip(found["across"].medians, found["local"].medians, strict=True)
    told["across_less_local_ms"] = round(statistics.median(a - b for a, b in pairs), 2)
    pairs = zip(found["across"].requests, found["local"].requests, strict=True)
    told["request_across_less_local_ms"] = round(statistics.median(a - b for a, b in pairs), 2)
    return told


def main(arguments: list[str]) -> int:
    """Print the figures; 1 where the limit is passed and `--check` was given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    with ServersOnRay(2, _SETTINGS) as cluster:
        figures = report(asyncio.run(measure(cluster, options.rounds, options.calls)))
    print(json.dumps(figures))
    return int(options.check and figures["across_less_local_ms"] > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
