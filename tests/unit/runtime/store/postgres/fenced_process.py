"""A process of the tests of split brain: a node with a real lease and a real writer.

    python -m tests.unit.runtime.store.postgres.fenced_process URL NODE [--trust-only-the-database]

It prints `epoch N`, then for each line that it reads: `write` stores one event and prints `ack INDEX`
or `refused KIND`; `begin` opens a transaction that inserts a row, `commit` ends it. `lost KIND` is
printed when the lease is lost.
"""

from __future__ import annotations

import argparse
import os
import sys

import psycopg

from oubliette.records import Event
from oubliette.runtime.store import Writer, operations
from oubliette.runtime.store.postgres.cluster.node_lease import NodeLease
from oubliette.runtime.store.postgres.control_connection import control_connection
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.postgres.fence import NodeFence

EVENT = Event(session_id="s", index=-1, ts=1.0, type="message", data={"text": "x"}, principal="p")


def say(*words: object) -> None:
    """One whole line in one write, from whichever thread."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("node")
    parser.add_argument("--trust-only-the-database", action="store_true")
    options = parser.parse_args()
    lease = NodeLease(
        options.url, options.node, on_lost=lambda stale: say("lost", type(stale).__name__)
    )
    fence = lease.take()
    if options.trust_only_the_database:
        fence = NodeFence(fence.node, fence.epoch)
    database = PostgresDatabase(options.url, fence=fence)
    writer = Writer(database, on_state=lambda state, reason: say("state", state), hold_seconds=2.0)
    writer.start()
    own = control_connection(options.url, "split brain")
    say("epoch", fence.epoch)
    for line in sys.stdin:
        try:
            match line.strip():
                case "write":
                    ((event,),) = writer.submit((operations.AppendEvents((EVENT,)),)).result(30)
                    say("ack", event.index)
                case "begin":
                    own.execute("BEGIN")
                    fence.hold(own)
                    own.execute("INSERT INTO meta (key, value) VALUES ('torn', '')")
                    say("begun")
                case "commit":
                    own.execute("COMMIT")
                    say("committed")
        except Exception as error:
            say("refused", type(error).__name__)
    with_psycopg_gone = (psycopg.Error, RuntimeError)
    try:
        own.close()
        writer.close().exception(10)
    except with_psycopg_gone as error:
        say("closing", type(error).__name__)
    lease.close()
    say("ended")


if __name__ == "__main__":
    main()
