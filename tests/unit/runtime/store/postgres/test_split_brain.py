"""A node that is stopped, given up and woken stores nothing more: a real process, stopped for real."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.store.postgres.cluster import nodes, placements
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, state_of, take

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.requires("postgres")
ROOT = Path(__file__).resolve().parents[5]
WAIT = 30.0


class FencedProcess:
    """One node as a process, and what it has printed."""

    def __init__(self, url: str, node: str, *options: str) -> None:
        module = "tests.unit.runtime.store.postgres.fenced_process"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, url, node, *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def tell(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def said(self, *beginnings: str) -> str:
        """The next line that begins with one of these."""
        while True:
            line = self._lines.get(timeout=WAIT)
            if line.startswith(beginnings):
                return line

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.wake()
        self.process.stdin.close()
        try:
            self.process.wait(WAIT)
        finally:
            self.process.kill()
            self._thread.join(WAIT)
            self.process.stdout.close()


@pytest.fixture(params=["own-count", "database-alone"])
def node(request: pytest.FixtureRequest, url: str) -> Iterator[FencedProcess]:
    options = ["--trust-only-the-database"] if request.param == "database-alone" else []
    process = FencedProcess(url, "a", *options)
    try:
        assert process.said("epoch") == "epoch 1"
        yield process
    finally:
        process.close()


def stored(connection) -> int:
    return connection.execute("SELECT count(*) FROM events").fetchone()[0]


def test_a_node_that_was_stopped_and_given_up_stores_nothing_when_it_is_woken(node, connection):
    """Steps: it writes, is stopped, its lease ends, it is declared gone, its project is given to
    another node, it is woken with a write on its way."""
    by = take(connection, "b")
    assert placements.place(connection, "p1", "a") == "a"
    node.tell("write")
    assert node.said("ack", "refused") == "ack 0"
    node.stop()
    node.tell("write")  # found when it wakes
    let_lease_end(connection, "a")
    nodes.declare_gone(connection, "a", by)
    assert placements.place(connection, "p1", "b") == "b"
    node.wake()
    node.tell("write")
    answers = {node.said("refused", "ack", "lost") for _ in range(3)}
    assert answers <= {"refused StaleNode", "refused Unavailable", "lost StaleNode"}
    assert "lost StaleNode" in answers
    assert stored(connection) == 1
    home = placements.home_of(connection, "p1")
    assert home is not None
    assert home.node == "b"


def test_a_node_that_is_stopped_within_a_transaction_holds_nothing_up_and_stores_nothing(
    node, connection
):
    by = take(connection, "b")
    node.tell("begin")
    assert node.said("begun", "refused") == "begun"
    node.stop()
    let_lease_end(connection, "a")
    nodes.declare_gone(connection, "a", by)
    node.wake()
    node.tell("commit")
    assert node.said("committed", "refused").startswith("refused")
    found = connection.execute("SELECT count(*) FROM meta WHERE key = 'torn'").fetchone()
    assert found == (0,)


def test_a_second_process_of_a_node_ends_the_first(node, connection, url):
    node.tell("write")
    assert node.said("ack", "refused") == "ack 0"
    second = FencedProcess(url, "a")
    try:
        assert second.said("epoch") == "epoch 2"
        node.tell("write")
        assert node.said("refused", "ack") in {"refused StaleNode", "refused Unavailable"}
        assert node.said("lost") == "lost StaleNode"
        second.tell("write")
        assert second.said("refused", "ack") == "ack 1"
        assert stored(connection) == 2
    finally:
        second.close()


@pytest.mark.slow
def test_a_node_that_was_stopped_for_longer_than_its_lease_waits_until_it_has_it_again(
    node, connection
):
    """Nobody has given it up, so it continues; what it was asked for meanwhile is stored once."""
    node.tell("write")
    assert node.said("ack", "refused") == "ack 0"
    node.stop()
    ended = threading.Event()
    ended.wait(nodes.LEASE_SECONDS + 1)
    assert nodes.ended_leases(connection) == ["a"]
    node.tell("write")
    node.wake()
    assert node.said("ack", "refused") == "ack 1"
    assert state_of(connection, "a").epoch == 1
    assert stored(connection) == 2
