"""A disk that is really full: the writer pauses, says why, loses nothing and goes on by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.runtime.store.processes import WritingProcess
from tests.unit.runtime.store.test_crashes import check

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a tmpfs of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("cannot mount a tmpfs here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def test_a_full_disk_holds_writes_back_until_there_is_space(small_disk):
    path = small_disk / "store.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (2 * MIB))
    process = WritingProcess(path, "--bytes", "5000", "--hold", "60")
    try:
        process.wait_for("state", "paused")
        assert process.said("refused") == []
        ballast.unlink()
        process.wait_for("state", "running")
        process.wait_for("ack")
        process.wait_for("state", "paused")  # full again
        process.finish(kill=True)
        # Nothing that it said is missing, with not a byte left on the disk.
        copy = small_disk.parent / "copy"
        copy.mkdir()
        for file in small_disk.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        check(copy / "store.db", process.acknowledged)
    finally:
        process.finish(kill=True)


def test_a_write_beyond_the_file_size_limit_is_refused_until_the_limit_is_lifted(tmp_path):
    """RLIMIT_FSIZE fails like a broken disk (EFBIG, an I/O error), not like a full one."""
    path = tmp_path / "store.db"
    process = WritingProcess(path, "--bytes", "20000", "--limit", str(1 * MIB), "--hold", "0.05")
    state = process.wait_for("state", "paused")
    assert state[2:], "the reason is told"
    process.wait_for("refused")
    process.tell("unlimit")
    process.wait_for("unlimited")
    process.wait_for("state", "running")
    process.wait_for("ack", count=10)
    assert process.finish() == 0
    assert len(process.acknowledged) > 10
    check(path, process.acknowledged)


def test_a_folder_that_cannot_be_written_is_said_at_once():
    from oubliette.errors import ConfigError
    from oubliette.runtime.store import Database

    with pytest.raises(ConfigError):
        Database(Path("/proc/store.db"))  # not even root makes files there
