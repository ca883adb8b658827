"""Commit latency and throughput of the store, beside a floor of raw SQLite in the same run.

    python -m tests.bench.store [--seconds 2] [--folder DIR]

Prints JSON: microseconds and events per second, and their ratio to the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from oubliette.actors.messages import EventsCommitted
from oubliette.actors.store.actor import StoreActor, Transact
from oubliette.actors.subscriptions.actor import SubscriptionActor
from oubliette.actors.subscriptions.log_source import LogSource
from oubliette.actors.subscriptions.stored_cursor import SubscriptionMemory, SubscriptionPlan
from oubliette.kit import Actor, System, handles
from oubliette.records import Event
from oubliette.runtime.store import Database, Reader
from oubliette.runtime.store.operations import AppendEvents

DATA = {"text": "a line of some hundred characters, as agents print them " * 2}
BATCH = 50
SENDERS = 20


def event(session: str, index: int) -> Event:
    return Event(
        session_id=session,
        index=index,
        ts=1.0,
        type="message",
        data=DATA,
        principal="prin",
        caller_id="me",
        source=f"proc:{index}:0",
    )


def percentiles(samples: list[float]) -> dict[str, float]:
    samples.sort()
    last = len(samples) - 1
    return {
        "n": len(samples),
        "p50_us": round(samples[last // 2] * 1e6, 1),
        "p99_us": round(samples[last * 99 // 100] * 1e6, 1),
        "max_us": round(samples[-1] * 1e6, 1),
    }


def raw(folder: Path, seconds: float) -> dict[str, object]:
    """BEGIN, one INSERT into a table without indexes, COMMIT: on this thread, nothing around it."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, idx INTEGER, data BLOB)")
    data = json.dumps(DATA).encode()
    sql = "INSERT INTO events (idx, data) VALUES (?, ?)"
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql, (len(samples), data))
        connection.execute("COMMIT")
        samples.append(time.perf_counter() - start)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(sql, [(count, data)] * BATCH * SENDERS)
        connection.execute("COMMIT")
        count += BATCH * SENDERS
    rate = count / (time.perf_counter() - start)
    connection.close()
    return {**percentiles(samples), "events_per_second": round(rate)}


async def hop(seconds: float) -> dict[str, float]:
    """What the way to a thread and back costs, with nothing done there."""
    loop = asyncio.get_running_loop()
    queue: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()

    def answer() -> None:
        while (future := queue.get()) is not None:
            loop.call_soon_threadsafe(future.set_result, None)

    thread = threading.Thread(target=answer)
    thread.start()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        future = loop.create_future()
        queue.put(future)
        await future
        samples.append(time.perf_counter() - start)
    queue.put(None)
    thread.join()
    return percentiles(samples)


class Counter(Actor):
    """A subscriber that does nothing with its events but count them."""

    def __init__(self) -> None:
        self.count = 0

    @handles(EventsCommitted)
    def _take(self, message: EventsCommitted) -> None:
        self.count += len(message.events)


async def ours(folder: Path, seconds: float) -> dict[str, dict[str, Any]]:
    database = Database(folder / "store.db")
    reader = Reader(database)
    found: dict[str, dict[str, Any]] = {}
    async with System() as system:
        store = system.spawn(StoreActor, database, name="store")
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            await store.ask(Transact(ops=(AppendEvents((event("one", len(samples)),)),)))
            samples.append(time.perf_counter() - start)
        found["transact_one_event"] = percentiles(samples)

        async def sender(number: int, kind: str = "many") -> int:
            index = 0
            while time.perf_counter() < end:
                batch = tuple(event(f"{kind}{number}", index + n) for n in range(BATCH))
                await store.ask(Transact(ops=(AppendEvents(batch),)))
                index += BATCH
            return index

        start = time.perf_counter()
        end = start + seconds
        total = sum(await asyncio.gather(*(sender(number) for number in range(SENDERS))))
        rate = total / (time.perf_counter() - start)
        found["appends"] = {"senders": SENDERS, "batch": BATCH, "events_per_second": round(rate)}

        plan = SubscriptionPlan(
            name="all", subscriber="all", source=LogSource(), durable=False, restart_seconds=1.0
        )
        counter = system.spawn(Counter, name="all").resolve()
        memory = SubscriptionMemory(cursor=await reader.last_seq())
        follower = system.spawn(SubscriptionActor, store, reader, plan, memory)
        start = time.perf_counter()
        end = start + seconds
        total = sum(await asyncio.gather(*(sender(number, "seen") for number in range(SENDERS))))
        spent = time.perf_counter() - start
        found["appends_with_a_subscriber_of_all"] = {
            "events_per_second": round(total / spent),
            "sent_per_second": round(cast("Any", counter).count / spent),
        }
        await follower.stop()

        samples = []
        end = time.perf_counter() + seconds / 2
        while (start := time.perf_counter()) < end:
            await reader.events("one", len(samples) % 100, max_events=10)
            samples.append(time.perf_counter() - start)
        found["read_ten_events"] = percentiles(samples)
    await reader.aclose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ob", dir=options.folder) as name:
        floor = raw(Path(name), options.seconds)
        way = asyncio.run(hop(options.seconds / 2))
        found = asyncio.run(ours(Path(name), options.seconds))
    one, many = found["transact_one_event"], found["appends"]
    print(
        json.dumps(
            {
                "floor_raw_sqlite": floor,
                "floor_thread_and_back": way,
                **found,
                "p50_over_floors": round(one["p50_us"] / (floor["p50_us"] + way["p50_us"]), 1),  # type: ignore[operator]
                "throughput_of_floor": round(
                    many["events_per_second"] / floor["events_per_second"],  # type: ignore[operator]
                    2,
                ),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
