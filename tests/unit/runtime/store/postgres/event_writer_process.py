"""A process that stores many events as a node, with a lease, a fence and a writer of its own.

    python -m tests.unit.runtime.store.postgres.event_writer_process URL NODE EVENTS [--hang-after N]

Every tenth batch it holds a commit back until some later ones are stored. After `--hang-after`
events it holds one back for good and prints `hangs`; it goes on with the others until it is killed.
It prints `stored N`, the events that were acknowledged, whenever there are more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
from collections import deque
from typing import TYPE_CHECKING, Final

from oubliette.records import Event
from oubliette.runtime.store import Writer, operations
from oubliette.runtime.store.log_order import EVENTS
from oubliette.runtime.store.postgres.cluster.node_lease import NodeLease
from oubliette.runtime.store.postgres.database import PostgresDatabase

if TYPE_CHECKING:
    from concurrent.futures import Future

    from oubliette.runtime.store.postgres.fence import NodeFence

PRINCIPAL: Final = "p"
CALLER: Final = "me"
LEAST: Final = 500
MOST: Final = 1000
"""Events of a batch."""
UNDER_WAY: Final = 4
"""Batches that wait for their commit."""
HOLD_EVERY: Final = 10
HELD_FOR: Final = 3
"""Batches that are stored while a commit is held back."""
WAIT: Final = 60.0


def say(*words: object) -> None:
    """One whole line in one write, so that a kill cannot tear it."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class HeldEvent:
    """A transaction of this node that has stored an event and is not committed yet."""

    def __init__(self, database: PostgresDatabase, fence: NodeFence, session: str) -> None:
        self._connection = database.connect()
        self._connection.execute("BEGIN")
        fence.check(self._connection)()
        (number,) = self._connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        self._connection.execute(
            "INSERT INTO events (seq, session_id, idx, ts, type, version, principal, caller_id,"
            " data) VALUES (?, ?, 0, 1.0, 'message', 1, ?, ?, ?)",
            (number * EVENTS, session, PRINCIPAL, CALLER, b'{"text": "held"}'),
        )

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()


def batch(session: str, size: int) -> operations.AppendEvents:
    data = {"text": "an event among very many"}
    return operations.AppendEvents(
        tuple(
            Event(
                session_id=session,
                index=-1,
                ts=1.0,
                type="message",
                data=data,
                principal=PRINCIPAL,
                caller_id=CALLER,
            )
            for _ in range(size)
        )
    )


def store_all(
    database: PostgresDatabase, fence: NodeFence, writer: Writer, count: int, hang_after: int
) -> None:
    under_way: deque[tuple[int, Future]] = deque()
    sizes = random.Random(fence.epoch)
    sent = stored = batches = 0
    held: HeldEvent | None = None
    hangs = False
    while stored < count:
        while sent < count and len(under_way) < UNDER_WAY:
            size = min(count - sent, sizes.randint(LEAST, MOST))
            session = f"{fence.node}-{fence.epoch}-{sent // 5000}"
            under_way.append((size, writer.submit((batch(session, size),))))
            sent += size
        size, answer = under_way.popleft()
        assert len(answer.result(WAIT)[0]) == size
        stored, batches = stored + size, batches + 1
        say("stored", stored)
        if hangs:
            continue
        if batches % HOLD_EVERY == 0:
            held = HeldEvent(database, fence, f"{fence.node}-{fence.epoch}-held-{batches}")
            if hang_after and stored >= hang_after:
                hangs = True
                say("hangs")
        elif held is not None and batches % HOLD_EVERY == HELD_FOR:
            held.commit()
            held = None
            say("held")
    if held is not None and not hangs:
        held.commit()
        say("held")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("node")
    parser.add_argument("events", type=int)
    parser.add_argument("--hang-after", type=int, default=0)
    options = parser.parse_args()
    lease = NodeLease(options.url, options.node, on_lost=lambda stale: say("lost", stale))
    fence = lease.take()
    database = PostgresDatabase(options.url, fence=fence)
    writer = Writer(database)
    with contextlib.closing(lease):
        writer.start()
        try:
            store_all(database, fence, writer, options.events, options.hang_after)
        finally:
            writer.close().result(WAIT)


if __name__ == "__main__":
    main()
