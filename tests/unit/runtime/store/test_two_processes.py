"""Other processes read while one writes (the command line beside a running server)."""

from __future__ import annotations

import multiprocessing

from oubliette.runtime.store import Database, Reader, queries
from tests.unit.runtime.store import blocking
from tests.unit.runtime.store.processes import WritingProcess


def _follow(path, until, outcome) -> None:
    """Follow one log from its start by cursor; report what was wrong with it."""
    reader = Reader(Database(path), 1)
    cursor, wrong = -1, []
    last_seq = 0
    while cursor < until:
        part = blocking.read(reader, queries.log, "s0", cursor, 50)
        for event in part.events:
            if event.index != cursor + 1 or event.seq <= last_seq or event.data["n"] != event.index:
                wrong.append((cursor, event.index, event.seq))
            cursor, last_seq = event.index, event.seq
        if part.last_index < cursor:
            wrong.append(("end", part.last_index, cursor))
    reader.close()
    outcome.put(wrong)


def test_two_processes_follow_the_log_without_a_gap_while_a_third_writes(tmp_path):
    path = tmp_path / "store.db"
    context = multiprocessing.get_context("spawn")
    outcome = context.Queue()
    writing = WritingProcess(path)
    writing.wait_for("ack")
    readers = [
        context.Process(target=_follow, args=(path, 400, outcome), daemon=True) for _ in range(2)
    ]
    try:
        for reader in readers:
            reader.start()
        assert [outcome.get(timeout=25) for _ in readers] == [[], []]
    finally:
        writing.finish()
        for reader in readers:
            reader.join(10)
            reader.kill()
        outcome.close()
    assert writing.process.returncode == 0
