"""What the actor kit costs, beside a floor measured in the same run: `python -m tests.bench.kit`.

The floor is the least that asyncio can do: one `asyncio.Queue` and one task an actor, a future an
ask, no names, no deadlines, no supervision. Absolute figures swing with the machine's load; the
ratios are what counts, and are medians over interleaved rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import psutil
import pykka

from oubliette.kit import Actor, Message, Reply, System, handles

TELLS = 20_000
ASKS = 3_000
WINDOW = 500
"""Tells between two looks at the far side, so that no mailbox overflows."""

LIMITS = {"tell": 0.4, "ask": 2.0, "bytes": 6144.0}
"""At least this share of the floor's tells; at most this multiple of its ask; bytes an actor."""


class Note(Message):
    """Something to count."""


class Count(Message, Reply[int]):
    """How many notes came."""


class Counter(Actor):
    """Counts notes."""

    mailbox_size = 10 * WINDOW

    def __init__(self) -> None:
        self.n = 0

    @handles(Note)
    def _note(self, _: Note) -> None:
        self.n += 1

    @handles(Count)
    def _count(self, _: Count) -> int:
        return self.n


class Floor:
    """The same with a queue and a task."""

    def __init__(self) -> None:
        self.n = 0
        self.queue: asyncio.Queue[tuple[str, asyncio.Future[int] | None]] = asyncio.Queue()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            kind, reply = await self.queue.get()
            if kind == "note":
                self.n += 1
            elif reply is not None:
                reply.set_result(self.n)

    def tell(self, _: Any) -> None:
        """Count one more."""
        self.queue.put_nowait(("note", None))

    async def ask(self, _: Any) -> int:
        """Say how many."""
        reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.queue.put_nowait(("count", reply))
        return await reply


class Threaded(pykka.ThreadingActor):
    """The same as a Pykka thread."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def on_receive(self, message: Any) -> Any:
        """Count, or say how many."""
        if message == "note":
            self.n += 1
            return None
        return self.n


async def _round(actor: Any, note: Any, count: Any) -> tuple[float, list[float]]:
    """Tells a second, and the seconds of each ask."""
    clock = time.perf_counter
    gc.collect()
    begin = clock()
    for _ in range(TELLS // WINDOW):
        for _ in range(WINDOW):
            actor.tell(note)
        await actor.ask(count)
    rate = TELLS / (clock() - begin)
    asks: list[float] = []
    for _ in range(ASKS):
        begin = clock()
        await actor.ask(count)
        asks.append(clock() - begin)
    return rate, asks


def _threaded_round() -> tuple[float, list[float]]:
    clock = time.perf_counter
    actor = Threaded.start()
    try:
        begin = clock()
        for _ in range(TELLS // WINDOW):
            for _ in range(WINDOW):
                actor.tell("note")
            actor.ask("count")
        rate = TELLS / (clock() - begin)
        asks: list[float] = []
        for _ in range(ASKS):
            begin = clock()
            actor.ask("count")
            asks.append(clock() - begin)
    finally:
        actor.stop()
    return rate, asks


async def _speed(rounds: int) -> dict[str, tuple[float, float, float]]:
    rates: dict[str, list[float]] = {"floor": [], "kit": [], "threading": []}
    asks: dict[str, list[float]] = {"floor": [], "kit": [], "threading": []}
    async with System("bench", watchdog=None) as system:
        for _ in range(rounds):
            floor = Floor()
            kit = system.spawn(Counter)
            results = {
                "floor": await _round(floor, None, None),
                "kit": await _round(kit, Note(), Count()),
                "threading": await asyncio.to_thread(_threaded_round),
            }
            floor.task.cancel()
            await kit.stop()
            for name, (rate, latencies) in results.items():
                rates[name].append(rate)
                asks[name] += latencies
    return {
        name: (
            statistics.median(rates[name]),
            statistics.median(asks[name]) * 1e6,
            statistics.quantiles(asks[name], n=100)[98] * 1e6,
        )
        for name in rates
    }


async def _memory(kind: str, actors: int) -> float:
    """Bytes of resident memory an idle actor, at `actors` of them."""
    process = psutil.Process()
    async with System("bench", watchdog=None) as system:
        kept: list[Any] = []
        gc.collect()
        before = process.memory_info().rss
        for _ in range(actors):
            kept.append(Floor() if kind == "floor" else system.spawn(Counter))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        used = (process.memory_info().rss - before) / actors
        for one in kept:
            if isinstance(one, Floor):
                one.task.cancel()
    return used


def _memory_apart(kind: str, actors: int) -> float:
    """The same in a process of its own, since freed memory would blur it."""
    command = [sys.executable, "-m", "tests.bench.kit", "--memory", kind, "--actors", str(actors)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout.splitlines()[-1])


def measure(rounds: int = 5, actors: int = 10_000) -> dict[str, Any]:
    """All figures, as plain numbers; the ratios are against the floor."""
    speed = asyncio.run(_speed(rounds))
    memory = {kind: _memory_apart(kind, actors) for kind in ("floor", "kit")}
    floor = speed["floor"]
    return {
        "engines": {
            name: {"tells_per_second": rate, "ask_p50_us": p50, "ask_p99_us": p99}
            for name, (rate, p50, p99) in speed.items()
        },
        "bytes_per_idle_actor": memory,
        "actors": actors,
        "ratios": {
            name: {"tell": rate / floor[0], "ask": p50 / floor[1]}
            for name, (rate, p50, _) in speed.items()
        },
    }


def verdicts(figures: dict[str, Any]) -> dict[str, bool]:
    """Whether the kit keeps its limits."""
    ratios = figures["ratios"]["kit"]
    return {
        "tell": ratios["tell"] >= LIMITS["tell"],
        "ask": ratios["ask"] <= LIMITS["ask"],
        "bytes": figures["bytes_per_idle_actor"]["kit"] <= LIMITS["bytes"],
    }


def main() -> int:
    """Measure and print; 1 if a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--actors", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory", choices=["floor", "kit"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(asyncio.run(_memory(options.memory, options.actors)))
        return 0
    figures = measure(options.rounds, options.actors)
    kept = verdicts(figures)
    if options.json:
        print(json.dumps(figures | {"kept": kept}))
        return 0 if all(kept.values()) else 1
    print(f"{'':12}{'tells/s':>12}{'x floor':>9}{'ask p50 us':>12}{'x floor':>9}{'p99 us':>9}")
    for name, row in figures["engines"].items():
        ratio = figures["ratios"][name]
        print(
            f"{name:12}{row['tells_per_second']:12,.0f}{ratio['tell']:9.2f}"
            f"{row['ask_p50_us']:12.1f}{ratio['ask']:9.2f}{row['ask_p99_us']:9.1f}"
        )
    memory = figures["bytes_per_idle_actor"]
    print(f"bytes an idle actor at {figures['actors']}: kit {memory['kit']:,.0f}, "
          f"floor {memory['floor']:,.0f}")  # fmt: skip
    for name, limit in LIMITS.items():
        print(f"{name}: limit {limit:g}, {'kept' if kept[name] else 'NOT KEPT'}")
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
