"""A process of the crash and disk tests: writes transactions and prints what was acknowledged.

    python -m tests.unit.runtime.store.writing_process PATH|URL [--bytes N] [--limit BYTES] [--hold SECONDS]

Each transaction appends two events to one of four logs and settles nothing else; a line
`ack SESSION INDEX SEQ` is printed for each event once the answer is there.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
import threading

from oubliette.errors import StorageUnavailable
from oubliette.records import Event
from oubliette.runtime.store import Reader, Writer, operations, queries
from tests.unit.runtime.store import blocking
from tests.unit.runtime.store.samples import opened


def say(*words: object) -> None:
    """One whole line in one write, so that a kill cannot tear it."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--hold", type=float, default=5.0)
    options = parser.parse_args()
    if options.limit:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.limit, hard))
    ended = threading.Event()

    def on_batch(batch) -> None:
        for request in batch:
            if isinstance(request.error, StorageUnavailable):
                say("refused", request.tag)
            elif request.error is not None:
                say("error", request.error)
                ended.set()
            else:
                for event in request.result[0]:
                    say("ack", event.session_id, event.index, event.seq)
            room.release()

    def on_state(state: str, reason: str) -> None:
        say("state", state, reason)

    room = threading.Semaphore(8)
    database = opened(options.path)
    writer = Writer(database, on_batch=on_batch, on_state=on_state, hold_seconds=options.hold)
    reader = Reader(database, 1)
    following = [blocking.read(reader, queries.bounds, f"s{n}")[1] + 1 for n in range(4)]
    reader.close()
    writer.start()
    say("ready")

    def commands() -> None:
        for line in sys.stdin:
            if line.strip() == "unlimit":
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                say("unlimited")
        ended.set()

    threading.Thread(target=commands, daemon=True).start()
    for number in itertools.count():
        room.acquire()
        if ended.is_set():
            break
        session = number % 4
        index = following[session]
        # -1: after a refusal the index is not where it would have been.
        batch = tuple(
            Event(
                session_id=f"s{session}",
                index=-1,
                ts=1.0,
                type="message",
                data={"n": index + n, "text": os.urandom(options.bytes // 2).hex()},
                principal="p",
                caller_id="me",
            )
            for n in range(2)
        )
        following[session] += 2
        writer.post((operations.AppendEvents(batch), operations.BumpMeta("transactions")), number)
    writer.close().result(10)
    say("ended")


if __name__ == "__main__":
    main()
