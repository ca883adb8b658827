"""Throughput of the store on PostgreSQL, beside a bare batched insert in the same run.

    python -m tests.bench.postgres_store [--seconds 2] [--url URL]

Without a URL it starts a server of its own, which flushes its log to the disk. Prints JSON: events
per second of both, and their ratio. Both insert the same rows in batches of the same size, from one
connection, into tables with the same indexes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from oubliette.records import Event
from oubliette.runtime.store import Writer
from oubliette.runtime.store.codec import encode
from oubliette.runtime.store.opening import open_database
from oubliette.runtime.store.operations import AppendEvents
from oubliette.runtime.store.postgres.database import PostgresDatabase
from tests.bench.flushing_postgres import empty_database
from tests.bench.store import BATCH, SENDERS, event, percentiles

ROUNDS = 3
"""Turns of each, one after the other; the ratio is of the best of both."""
_INSERT = """
INSERT INTO bare (seq, session_id, idx, ts, type, version, principal, caller_id, source, data)
SELECT * FROM unnest(
  %s::bigint[], %s::text[], %s::bigint[], %s::double precision[], %s::text[], %s::bigint[],
  %s::text[], %s::text[], %s::text[], %s::bytea[])"""


def _row(seq: int, each: Event) -> tuple[Any, ...]:
    head = (seq, each.session_id, each.index, each.ts, each.type, each.version, each.principal)
    return (*head, each.caller_id, each.source, encode(each.data))


def bare(connection: psycopg.Connection[Any], seconds: float, turn: int) -> int:
    """Events per second of INSERT … SELECT FROM unnest(…), a transaction for each batch."""
    count, base = 0, turn * 100_000_000
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        rows = [
            _row(
                base + count + number * BATCH + n, event(f"b{turn}-{number}", count // SENDERS + n)
            )
            for number in range(SENDERS)
            for n in range(BATCH)
        ]
        with connection.transaction():
            connection.execute(_INSERT, [list(column) for column in zip(*rows, strict=True)])
        count += len(rows)
    return round(count / (time.perf_counter() - start))


def ours(database: PostgresDatabase, seconds: float, turn: int) -> int:
    """Events per second of a writer with as many senders, each with one batch under way."""
    stored, following = 0, [0] * SENDERS
    end = time.perf_counter() + seconds
    over = threading.Event()
    left = SENDERS

    def send(number: int) -> None:
        first = following[number]
        following[number] = first + BATCH
        batch = tuple(event(f"o{turn}-{number}", first + n) for n in range(BATCH))
        writer.post((AppendEvents(batch),), number)

    def on_batch(batch: list[Any]) -> None:
        nonlocal stored, left
        for request in batch:
            if request.error is not None:
                raise request.error
            stored += BATCH
            if time.perf_counter() < end:
                send(request.tag)
            else:
                left -= 1
        if not left:
            over.set()

    writer = Writer(database, on_batch=on_batch)
    start = time.perf_counter()
    for number in range(SENDERS):
        send(number)
    writer.start()
    assert over.wait(seconds + 30)
    rate = round(stored / (time.perf_counter() - start))
    writer.close().result(10)
    return rate


def one_by_one(database: PostgresDatabase, seconds: float) -> dict[str, float]:
    """Latency of a transaction with one event."""
    writer = Writer(database)
    writer.start()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        writer.submit((AppendEvents((event("one", len(samples)),)),)).result(30)
        samples.append(time.perf_counter() - start)
    writer.close().result(10)
    return percentiles(samples)


def measure(url: str, seconds: float) -> dict[str, Any]:
    """Both, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(url, Path(folder) / "unused", durability="power")
    assert isinstance(database, PostgresDatabase)
    floors: list[int] = []
    rates: list[int] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (LIKE events INCLUDING ALL)")
        for turn in range(ROUNDS):
            floors.append(bare(connection, seconds, turn))
            rates.append(ours(database, seconds, turn))
        connection.execute("DROP TABLE bare")
    return {
        "bare_insert_events_per_second": floors,
        "store_events_per_second": rates,
        "throughput_of_floor": round(max(rates) / max(floors), 2),
        "transact_one_event": one_by_one(database, seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--url", default="", help="an empty database")
    options = parser.parse_args()
    with empty_database(options.url) as url:
        print(json.dumps(measure(url, options.seconds), indent=1))


if __name__ == "__main__":
    main()
