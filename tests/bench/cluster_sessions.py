"""Very many live sessions over three nodes: memory of a session, time of a spawn and of a turn.

    python -m tests.bench.cluster_sessions [--levels 100 1000 3000 10000] [--per-project 50]

Real servers are the nodes, processes of Ray's or, with `--lone`, plain ones, with a PostgreSQL that
flushes its log; client and guests are processes too. There are no processes of agents: `scripted_guests` answers by script, over
the connections that a real guest has. At each number of live sessions it measures spawns and turns,
one after the other, and for each the processor time of all nodes; beside them, as what the machine
gives at that time, plain calls by the same client. Ratios are to the figures at the first level.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tests.bench.relay import middle, resident
from tests.bench.scripted_node import GUESTS, NAME, guests_socket
from tests.bench.sdk_floor import processor_ms
from tests.bench.servers_on_ray import ROOT, ServersOnRay
from tests.callers import HttpCaller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NODES: Final = 3
AT_ONCE: Final = 6
"""Spawns under way at once while a level is filled."""
SAMPLES: Final = 100
WARM: Final = 30
"""Sessions before anything is measured."""
MAIN: Final = "tests.bench.scripted_node:main"
_MANY: Final = 1_000_000
_SETTINGS: Final = {
    "containers.runtime": NAME,
    "sessions.max_live_per_project": _MANY,
    "sessions.idle_timeout_seconds": 86_400,
    "callers.max_calls_in_flight": 1000,
    "callers.calls_per_second": _MANY,  # what is measured is not the limit
    "callers.calls_burst": _MANY,
    "agents.default": "scripted",
    "cluster.max_live_sessions": _MANY,  # otherwise by the memory that real agents need
}


class LoneServers(ServersOnRay):
    """The same nodes as plain processes: the sessions that are measured need no messages."""

    def _start(self) -> dict[str, int]:
        self._processes = {
            name: subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.bench.lone_node",
                    str(self.folder / "n" / name),
                    self.given[GUESTS],
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(self.folder / f"{name}.log").open("wb"),
                cwd=ROOT,
            )
            for name in self.names
        }
        for process in self._processes.values():
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return {name: process.pid for name, process in self._processes.items()}

    def _end(self) -> None:
        _end(list(self._processes.values()))


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes that live as long as their standard input."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        assert process.stdout is not None
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class Guests:
    """The processes that play the guests, one for each node."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder = folder
        self._names = names
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir()
        for name in self._names:
            path = str(guests_socket(self._folder, name))
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.scripted_guests", path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
            )
            self._processes.append(process)
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._processes)


@dataclass
class Level:
    """What was measured with so many live sessions."""

    sessions: int
    spawn_ms: list[float] = field(default_factory=list)
    turn_ms: list[float] = field(default_factory=list)
    call_ms: list[float] = field(default_factory=list)
    spawn_cpu_ms: float = 0.0
    turn_cpu_ms: float = 0.0
    resident: dict[str, int] = field(default_factory=dict)
    """Bytes of each node, before the spawns that were measured."""


class Bench:
    """Sessions of a cluster, and what they cost."""

    def __init__(self, cluster: ServersOnRay, per_project: int) -> None:
        self._cluster = cluster
        self._per_project = per_project
        self._clients: list[HttpCaller] = []
        self._projects: list[tuple[HttpCaller, str]] = []
        self.sessions: list[tuple[HttpCaller, str]] = []
        self._started = 0

    async def __aenter__(self) -> Self:
        key = self._cluster.key()
        for name in self._cluster.names:
            client = HttpCaller(self._cluster.urls[name], key)
            self._clients.append(await client.__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.__aexit__(None, None, None)

    def _busy(self) -> float:
        return sum(processor_ms(pid) for pid in self._cluster.pids.values())

    async def spawn(self) -> None:
        """Start a session on the next node, in its newest project."""
        number, self._started = self._started, self._started + 1
        if number % (NODES * self._per_project) == 0:
            await self._add_projects()
        client, project = self._projects[-NODES + number % NODES]
        made = await client.call(
            "session_spawn", project_id=project, prompt="hello", new_session=True
        )
        self.sessions.append((client, made["session_id"]))

    async def _add_projects(self) -> None:
        for client, name in zip(self._clients, self._cluster.names, strict=True):
            made = await client.call(
                "project_create",
                name=f"{name}-{len(self._projects)}",
                placement={"labels": {"name": name}},
            )
            self._projects.append((client, made["id"]))

    async def fill(self, count: int) -> None:
        """Start sessions until there are so many, and wait until all have answered."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with gate:
                await self.spawn()

        while left := count - len(self.sessions):
            # Up to where the next projects are needed, which are made by one of them.
            room = NODES * self._per_project - self._started % (NODES * self._per_project)
            if room == NODES * self._per_project:
                await self.spawn()
                continue
            await asyncio.gather(*(one() for _ in range(min(left, room))))
        await self.rest()

    async def rest(self) -> None:
        """Wait until no turn is under way."""
        async with asyncio.timeout(600):
            while self._turns_under_way():
                await asyncio.sleep(0.5)  # nobody tells when all of them have ended

    def _turns_under_way(self) -> bool:
        sql = "SELECT 1 FROM turns WHERE state IN ('queued', 'running') LIMIT 1"
        return bool(self._cluster.query(sql))

    async def turn(self) -> None:
        """A turn of any session, from its message to its end."""
        client, session_id = random.choice(self.sessions)
        sent = await client.call("session_message", session_id=session_id, message="again")
        after, found = sent["last_index"], False
        while not found:
            page = await client.call(
                "session_events", session_id=session_id, since_index=after, wait_seconds=30
            )
            found = any(each["type"] == "completion" for each in page["events"])
            after = page["last_index"]

    async def plain(self) -> None:
        """A call that no session has a part in."""
        await random.choice(self._clients).call("project_list", limit=1)

    async def _timed(self, work: Callable[[], Awaitable[None]]) -> tuple[list[float], float]:
        times: list[float] = []
        before = self._busy()
        for _ in range(SAMPLES):
            began = time.perf_counter()
            await work()
            times.append((time.perf_counter() - began) * 1000)
        return times, (self._busy() - before) / SAMPLES

    async def measure(self, sessions: int) -> Level:
        """Measure with so many live sessions."""
        await self.fill(sessions)
        level = Level(sessions)
        level.resident = {name: resident(pid) for name, pid in self._cluster.pids.items()}
        level.call_ms, _ = await self._timed(self.plain)
        level.turn_ms, level.turn_cpu_ms = await self._timed(self.turn)
        await self.rest()
        level.spawn_ms, level.spawn_cpu_ms = await self._timed(self.spawn)
        await self.rest()
        return level


def told(level: Level, first: Level, base: dict[str, int], warm: int) -> dict[str, Any]:
    """The figures of a level, and their ratios to those of the first."""

    def figures(of: Level) -> dict[str, float]:
        grown = sum(of.resident.values()) - sum(base.values())
        call = middle(of.call_ms)
        return {
            "kib_a_session": grown / (of.sessions - warm) / 1024,
            "spawn_ms": middle(of.spawn_ms),
            "spawn_p99_ms": middle(of.spawn_ms, 0.99),
            "spawn_cpu_ms": of.spawn_cpu_ms,
            "spawn_of_call": middle(of.spawn_ms) / call,
            "turn_ms": middle(of.turn_ms),
            "turn_cpu_ms": of.turn_cpu_ms,
            "turn_of_call": middle(of.turn_ms) / call,
            "call_ms": call,
        }

    mine, floor = figures(level), figures(first)
    return {
        "sessions": level.sessions,
        **{name: round(value, 2) for name, value in mine.items()},
        "of_first": {name: round(mine[name] / floor[name], 2) for name in mine if floor[name]},
        "node_mib": {name: round(size / 2**20) for name, size in level.resident.items()},
    }


async def run(cluster: ServersOnRay, levels: list[int], per_project: int) -> list[dict[str, Any]]:
    """Measure each level, and print it."""
    found: list[dict[str, Any]] = []
    async with Bench(cluster, per_project) as bench:
        await bench.fill(WARM)
        for work in (bench.turn, bench.plain):
            for _ in range(WARM):
                await work()
        await bench.rest()
        base = {name: resident(pid) for name, pid in cluster.pids.items()}
        warm, first = len(bench.sessions), None
        for sessions in levels:
            began = time.perf_counter()
            level = await bench.measure(sessions)
            first = first or level
            found.append(told(level, first, base, warm))
            seconds = round(time.perf_counter() - began)
            print(json.dumps(found[-1] | {"seconds": seconds}), flush=True)
        ((live,),) = cluster.query("SELECT count(*) FROM sessions WHERE live = 1")
        assert live == len(bench.sessions), f"{live} of {len(bench.sessions)} sessions live"
    return found


def main(arguments: list[str]) -> int:
    """Print the figures of each level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", type=int, nargs="*", default=[100, 1000, 3000, 10_000])
    parser.add_argument("--per-project", type=int, default=50)
    parser.add_argument("--lone", action="store_true", help="without Ray")
    options = parser.parse_args(arguments)
    servers = LoneServers if options.lone else ServersOnRay
    cluster = servers(NODES, _SETTINGS, main=MAIN)
    folder = cluster.folder / "g"
    with contextlib.ExitStack() as stack:
        cluster.given = {GUESTS: str(folder)}
        stack.enter_context(cluster)
        stack.enter_context(Guests(folder, cluster.names))
        asyncio.run(run(cluster, options.levels, options.per_project))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
