"""The audit log's file."""

from __future__ import annotations

import json
import stat
import threading
import time

import msgspec

from oubliette.runtime.audit_log import FILE_NAME, MAX_LINE, AuditEntry, AuditLog, read


def entry(number: int) -> AuditEntry:
    return AuditEntry(
        ts=float(number), tool="session_get", transport="http", token_id="tok_1", principal="prin_1"
    )


def test_what_was_written_is_read_in_order_over_rotations(tmp_path) -> None:
    log = AuditLog(tmp_path, max_bytes=2000, files=3)
    for number in range(100):
        log.write(entry(number))
    log.close()
    kept = [each.ts for each in read(tmp_path)]
    assert kept == [float(number) for number in range(100 - len(kept), 100)]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [FILE_NAME, *(f"{FILE_NAME}.{number}" for number in (1, 2, 3))]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_second_run_goes_on_where_the_first_stopped(tmp_path) -> None:
    for number in range(2):
        log = AuditLog(tmp_path, max_bytes=1 << 20, files=3)
        log.write(entry(number))
        log.close()
    assert [each.ts for each in read(tmp_path)] == [0.0, 1.0]


def test_a_line_of_an_earlier_release_is_read(tmp_path) -> None:
    """It names the transport by another word."""
    line = {"ts": 1.0, "tool": "t", "door": "socket", "token_id": "tok_1", "principal": "p"}
    (tmp_path / FILE_NAME).write_text(json.dumps(line) + "\n")
    assert [each.transport for each in read(tmp_path)] == ["socket"]


def test_a_line_that_a_crash_has_cut_is_passed_over(tmp_path) -> None:
    log = AuditLog(tmp_path, max_bytes=1 << 20, files=3)
    log.write(entry(1))
    log.close()
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"ts": 2.0, "tool": "sess\n\xff\n[]\n')
    log = AuditLog(tmp_path, max_bytes=1 << 20, files=3)
    log.write(entry(3))
    log.close()
    assert [each.ts for each in read(tmp_path)] == [1.0, 3.0]


def test_a_log_that_cannot_be_written_holds_nobody_up_and_is_told(tmp_path, capsys) -> None:
    (tmp_path / f"{FILE_NAME}.1").mkdir()
    (tmp_path / f"{FILE_NAME}.1" / "in the way").touch()
    log = AuditLog(tmp_path, max_bytes=1, files=3)  # a rotation at each line
    log.write(entry(0))
    for number in range(1, 4):
        log.write(entry(number))
    log.close()
    said = capsys.readouterr()
    assert "audit lines are lost" in said.out + said.err


def test_entries_of_many_threads_are_all_kept_and_none_waits_for_the_disk(tmp_path) -> None:
    log = AuditLog(tmp_path, max_bytes=1 << 20, files=3)
    writers = [
        threading.Thread(target=lambda n=n: [log.write(entry(n * 1000 + m)) for m in range(250)])
        for n in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    log.close()
    kept = [each.ts for each in read(tmp_path)]
    assert sorted(kept) == [float(n * 1000 + m) for n in range(4) for m in range(250)]
    for n in range(4):  # those of one thread in their order
        mine = [ts for ts in kept if n * 1000 <= ts < n * 1000 + 1000]
        assert mine == sorted(mine)


def test_an_entry_is_in_the_file_soon_and_not_at_the_end_alone(tmp_path) -> None:
    log = AuditLog(tmp_path, max_bytes=1 << 20, files=3)
    for number in range(2):
        log.write(entry(number))
        deadline = time.monotonic() + 5
        while len(list(read(tmp_path))) <= number:
            assert time.monotonic() < deadline
    log.close()


def test_a_close_just_when_entries_were_gathered_is_not_missed(tmp_path) -> None:
    log = AuditLog(tmp_path, max_bytes=1 << 20, files=3)

    class Gathering(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if super().wait(timeout):
                return True
            self.set()  # what `close` does, in the moment after the time to gather
            log._news.set()
            return False

    log._ending = Gathering()
    log.write(entry(1))
    log._thread.join(5)
    assert not log._thread.is_alive()
    log.close()
    assert [each.ts for each in read(tmp_path)] == [1.0]


def test_no_entry_has_a_longer_line_than_is_allowed(tmp_path) -> None:
    log = AuditLog(tmp_path, max_bytes=1 << 20, files=3)
    texts = ("tool", "transport", "token_id", "principal", "session_id", "target_session_id")
    for character in ("x", "\u0001", "\U0001f600"):
        wide = dict.fromkeys((*texts, "project_id", "outcome"), character * 65_536)
        log.write(msgspec.structs.replace(entry(1), **wide))
    log.write(entry(2))
    log.close()
    lines = (tmp_path / FILE_NAME).read_bytes().splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= MAX_LINE
    assert list(read(tmp_path))[-1] == entry(2)
