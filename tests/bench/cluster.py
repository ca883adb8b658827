"""What a message to another node costs, beside a bare call of a Ray actor in the same run.

`python -m tests.bench.cluster` starts a trial cluster of two nodes on this machine. A round is the
asks of an actor on the other node, the same number of bare calls between two Ray actors on the same two
nodes, and asks of an actor in this process; rounds are interleaved, ratios are medians of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from oubliette.cluster import trial
from oubliette.cluster.driver import connect, disconnect
from oubliette.kit import Actor, Message, Reply, System, handles

MAIN = "tests.cluster.kit_node:main"
ASKS = 60
PAIRS = 6
"""Turns in each round of asks and bare calls: they are near in time, so both meet the same load."""
CROWD = 300
"""Asks at once."""
TELLS = 50_000
LIMIT = 1.3
"""At most this multiple of the bare call."""


class Ping(Message, Reply[int]):
    """Something to answer."""


class Local(Actor):
    """Answers in this process."""

    @handles(Ping)
    def _ping(self, _: Ping) -> int:
        return 1


async def local_asks(count: int) -> float:
    """Seconds for an ask in one process."""
    async with System() as system:
        ref = system.spawn(Local)
        started = time.perf_counter()
        for _ in range(count):
            await ref.ask(Ping(), timeout=10)
        return (time.perf_counter() - started) / count


class Bare:
    """A Ray actor with nothing of ours."""

    async def ping(self, data: bytes) -> bytes:
        """Answer."""
        return data

    async def run(self, other: Any, count: int) -> float:
        """Seconds for a call of the other."""
        started = time.perf_counter()
        for _ in range(count):
            await other.ping.remote(b"x")
        return (time.perf_counter() - started) / count


def measure(rounds: int) -> dict[str, float]:
    """Medians of the rounds, in a cluster that is connected to."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from oubliette.cluster.nodes import find_node, machines
    from oubliette.cluster.ray_calls import RAY

    def call(at: str, verb: str, **body: Any) -> Any:
        request = find_node(at).request.remote(verb, json.dumps(body).encode())
        return json.loads(RAY.get(request, timeout=120))

    found = machines()
    near, far = (
        RAY.remote(Bare)
        .options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(found[node][0], soft=False),
        )
        .remote()
        for node in ("node1", "node2")
    )
    call("node1", "asks", node="node2", count=ASKS)
    RAY.get(near.run.remote(far, ASKS), timeout=60)
    asks: list[float] = []
    bare: list[float] = []
    local: list[float] = []
    tells: list[float] = []
    crowd: list[float] = []
    for _ in range(rounds):
        for _ in range(PAIRS):
            asks.append(call("node1", "asks", node="node2", count=ASKS) / ASKS)
            bare.append(RAY.get(near.run.remote(far, ASKS), timeout=60))
        crowd.append(CROWD / call("node1", "asks-at-once", node="node2", count=CROWD))
        local.append(asyncio.run(local_asks(ASKS)))
        tells.append(TELLS / call("node1", "tells", node="node2", count=TELLS))
    return {
        "ask_ms": statistics.median(asks) * 1e3,
        "bare_call_ms": statistics.median(bare) * 1e3,
        "local_ask_ms": statistics.median(local) * 1e3,
        "ask_of_bare": statistics.median(a / b for a, b in zip(asks, bare, strict=True)),
        "asks_at_once_per_second": statistics.median(crowd),
        "tells_per_second": statistics.median(tells),
    }


def main(arguments: list[str]) -> int:
    """Print the figures; 1 where a limit is passed and `--check` was given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="obb-", dir="/tmp") as base:  # noqa: S108 - short
        folder = Path(base)
        try:
            started = time.perf_counter()
            status = trial.up(folder, 2, MAIN, {})
            seconds = time.perf_counter() - started
            connect(folder / "ray", status["address"])
            try:
                figures = measure(options.rounds)
            finally:
                disconnect()  # first: without a head Ray waits for it for an hour
        finally:
            trial.down(folder)
    print(json.dumps({"up_s": round(seconds, 1)} | {k: round(v, 3) for k, v in figures.items()}))
    return int(options.check and figures["ask_of_bare"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
