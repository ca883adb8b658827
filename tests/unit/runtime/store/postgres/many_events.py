"""Three nodes that store very many events, and a fourth that reads them as they are stored.

Each writing node is a process. Some of their commits are held back, so that later ones are stored
before them; one process is killed while it holds one back, and its node is started again. The
connections of the reader are ended once.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

import psycopg

from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.reader import Reader
from tests.unit.runtime.store.postgres.event_writer_process import CALLER, PRINCIPAL

ROOT = Path(__file__).resolve().parents[5]
NODES = 3
MODULE = "tests.unit.runtime.store.postgres.event_writer_process"


@dataclass(frozen=True)
class Outcome:
    """What happened; `check` has found nothing wrong with it."""

    events: int
    held_back: int
    """Commits that were held back."""
    kills: int
    reconnections: int
    seconds_stored: float
    """From the start of the processes to the end of the last."""
    seconds_read: float
    """From there to the last event that was read."""

    @property
    def events_per_second(self) -> int:
        return round(self.events / (self.seconds_stored + self.seconds_read))


class WritingNode:
    """One process, and what it has said."""

    def __init__(self, url: str, name: str, events: int, hang_after: int = 0) -> None:
        self.stored = self.held = 0
        self.lost: list[str] = []
        self.hangs = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, url, name, str(events), f"--hang-after={hang_after}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            kind, _, rest = line.strip().partition(" ")
            match kind:
                case "stored":
                    self.stored = int(rest)
                case "held":
                    self.held += 1
                case "hangs":
                    self.hangs.set()
                case _:
                    self.lost.append(line)

    def kill(self) -> None:
        """End the process at once, if it runs."""
        self.process.kill()
        self.end(1.0)

    def end(self, seconds: float) -> int:
        """Wait for its end, and for all that it has said; return its exit status."""
        status = self.process.wait(seconds)
        self._thread.join()
        self.process.stdout.close()
        return status


class CallerFollower:
    """Reads a caller's events by cursor, on a thread with a loop, each time there may be more."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.seqs = array("q")
        self.failures: list[BaseException] = []
        self._reader = Reader(database, threads=1)
        self._loop = asyncio.new_event_loop()
        self._more = asyncio.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def more(self) -> None:
        """Read on; from any thread."""
        self._loop.call_soon_threadsafe(self._more.set)

    def close(self) -> None:
        self._closing = True
        self.more()
        self._thread.join()
        self._loop.close()
        self._reader.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._follow())
        except BaseException as error:
            self.failures.append(error)

    async def _follow(self) -> None:
        cursor = 0
        while not self._closing:
            self._more.clear()
            while events := await self._reader.caller_events(PRINCIPAL, CALLER, cursor):
                self.seqs.extend(event.seq for event in events)
                cursor = events[-1].seq
            await self._more.wait()


class Following:
    """The reading node: the tail of the log, and a caller's cursor that follows it."""

    def __init__(self, url: str) -> None:
        self.seqs = array("q")
        self.failures: list[str] = []
        self._changed = threading.Condition()
        self.database = PostgresDatabase(url)
        self.caller = CallerFollower(self.database)
        self.tail = self.database.tail(
            on_events=self._take, on_failed=self.failures.append, wanted=lambda: True
        )
        self.tail.start()
        assert self.tail.ready.wait(10)

    def _take(self, events) -> None:
        with self._changed:
            self.seqs.extend(event.seq for event in events)
            self._changed.notify_all()
        self.caller.more()

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until so many events were told; what comes too late shows in the check."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.seqs) >= count, seconds)

    def wait_for_caller(self, count: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while len(self.caller.seqs) < count and time.monotonic() < until:
            self.caller.more()
            time.sleep(0.05)

    def close(self) -> None:
        self.tail.close()
        self.caller.close()


class WatchedDatabase:
    """What is asked of the database beside the nodes, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, application_name="many events")

    def connections(self) -> list[int]:
        """The processes that serve the connections of stores."""
        found = self._connection.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'oubliette'"
        )
        return [pid for (pid,) in found]

    def end(self, connections: list[int]) -> int:
        """End connections; return how many there still were."""
        ended = self._connection.execute("SELECT pg_terminate_backend(unnest(%s))", (connections,))
        return sum(done for (done,) in ended)

    def seqs(self) -> array[int]:
        """All events that there are, in the order of their seqs."""
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute("SELECT seq FROM events ORDER BY seq")
            return array("q", (seq for (seq,) in cursor))

    def close(self) -> None:
        self._connection.close()


def run(url: str, events: int, seconds: float) -> Outcome:
    """Store so many events, at least, and read them; check what was read.

    Args:
        url: Of an empty database.
        events: Number of events.
        seconds: Time for all of it.
    """
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        following = stack.enter_context(contextlib.closing(Following(url)))
        watched = stack.enter_context(contextlib.closing(WatchedDatabase(url)))
        while len(readers := watched.connections()) < 2:  # the tail's and the cursor's
            assert time.monotonic() < until
            time.sleep(0.01)
        began = time.monotonic()
        share = events // NODES

        def started(name: str, count: int, hang_after: int = 0) -> WritingNode:
            node = WritingNode(url, name, count, hang_after)
            stack.callback(node.kill)
            return node

        killed = started("a", share, hang_after=share // 2)
        nodes = [started(name, share) for name in "bc"]
        assert killed.hangs.wait(until - time.monotonic())
        killed.kill()
        nodes.append(started("a", events - 2 * share - killed.stored))
        reconnections = watched.end(readers)
        for node in nodes:
            assert node.end(until - time.monotonic()) == 0
            assert node.lost == []
        stored = time.monotonic()
        truth = watched.seqs()
        following.wait_for(len(truth), until - time.monotonic())
        following.wait_for_caller(len(truth), until - time.monotonic())
        read = time.monotonic()
        check(following, truth)
        acknowledged = killed.stored + sum(node.stored for node in nodes)
        assert acknowledged == events
        held = sum(node.held for node in (killed, *nodes))
        # Of the killed process, there may be more than it has heard of.
        assert len(truth) >= acknowledged + held
    return Outcome(
        events=len(truth),
        held_back=held,
        kills=1,
        reconnections=reconnections,
        seconds_stored=stored - began,
        seconds_read=read - stored,
    )


def check(following: Following, truth: array[int]) -> None:
    """Both readers have each event once, in order, and nothing else."""
    assert following.failures == []
    assert following.caller.failures == []
    for told in (following.seqs, following.caller.seqs):
        if told != truth:
            skipped, twice = set(truth) - set(told), len(told) - len(set(told))
            raise AssertionError(
                f"{len(told)} of {len(truth)} events were told: {len(skipped)} skipped,"
                f" {twice} repeated, the first skipped: {min(skipped, default=None)}"
            )
