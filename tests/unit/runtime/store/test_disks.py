"""A disk that is really full: the writer pauses, says why, loses nothing and goes on by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.small_disk import small_disk
from tests.unit.runtime.store.processes import WritingProcess
from tests.unit.runtime.store.samples import opened
from tests.unit.runtime.store.test_crashes import check

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

MIB = 1024 * 1024


class FileOnSmallDisk:
    """A database in a file on a disk of 4 MiB."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.path = disk / "store.db"

    def check(self, acknowledged: set[tuple[str, int, int]]) -> None:
        """Nothing of this is missing, with not a byte left on the disk."""
        copy = self.disk.parent / "copy"
        copy.mkdir()
        for file in self.disk.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        check(copy / "store.db", acknowledged)


class PostgresOnSmallDisk:
    """A database of a server whose tables are on a disk of 14 MiB; an empty one has 8."""

    def __init__(self, disk: Path, server: PostgresServer) -> None:
        self.disk = disk
        self.server = server
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        self.path = server.new_database()
        server.execute("ALTER DATABASE t1 SET TABLESPACE small")

    def check(self, acknowledged: set[tuple[str, int, int]]) -> None:
        """Nothing of this is missing, also after a crash on the full disk, once it has space."""
        self.server.kill()
        self.server.start()
        more = ["mount", "-o", "remount,size=64m", str(self.disk)]
        subprocess.run(more, check=True, timeout=10)
        check(self.path, acknowledged)


@pytest.fixture(
    params=[
        "file",
        pytest.param(
            "postgres", marks=[pytest.mark.requires("postgres"), pytest.mark.requires("root")]
        ),
    ]
)
def on_small_disk(request, tmp_path):
    if request.param == "file":
        with small_disk(tmp_path / "disk", 4, tmp_path) as disk:
            yield FileOnSmallDisk(disk)
    else:
        server = request.getfixturevalue("own_postgres")
        with small_disk(server.folder / "disk", 14, server.folder) as disk:
            yield PostgresOnSmallDisk(disk, server)
            server.stop("immediate")  # the disk is free then


def test_a_full_disk_holds_writes_back_until_there_is_space(on_small_disk):
    ballast = on_small_disk.disk / "ballast"
    ballast.write_bytes(bytes(2 * MIB))
    process = WritingProcess(on_small_disk.path, "--bytes", "5000", "--hold", "60")
    try:
        process.wait_for("state", "paused")
        assert process.said("refused") == []
        ballast.unlink()
        process.wait_for("state", "running")
        process.wait_for("ack")
        process.wait_for("state", "paused")  # full again
        process.finish(kill=True)
        on_small_disk.check(process.acknowledged)
    finally:
        process.finish(kill=True)


class LimitedFile:
    """A database in a file; the writer is a process with a limit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = ("--limit", str(1 * MIB))

    def lift(self, process: WritingProcess) -> None:
        """Lift the limit."""
        process.tell("unlimit")
        process.wait_for("unlimited")


class LimitedPostgres:
    """A database of a server with a limit; to lift it takes a restart."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.path = server.new_database()
        opened(self.path).close()
        self.options = ()
        self._limit(17 * MIB)  # a file of its log has 16

    def _limit(self, size: int | None) -> None:
        self.server.most_bytes = size
        self.server.restart()

    def lift(self, process: WritingProcess) -> None:
        """Lift the limit."""
        del process
        self._limit(None)


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.requires("postgres"))])
def limited(request, tmp_path):
    if request.param == "file":
        return LimitedFile(tmp_path / "store.db")
    return LimitedPostgres(request.getfixturevalue("own_postgres"))


def test_a_write_beyond_the_file_size_limit_is_refused_until_the_limit_is_lifted(limited):
    """RLIMIT_FSIZE fails like a broken disk (EFBIG, an I/O error), not like a full one."""
    process = WritingProcess(limited.path, "--bytes", "40000", *limited.options, "--hold", "0.05")
    state = process.wait_for("state", "paused")
    assert state[2:], "the reason is told"
    process.wait_for("refused")
    limited.lift(process)
    process.wait_for("state", "running")
    process.wait_for("ack", count=10)
    assert process.finish() == 0
    assert len(process.acknowledged) > 10
    check(limited.path, process.acknowledged)


def test_a_folder_that_cannot_be_written_is_said_at_once():
    from oubliette.errors import ConfigError
    from oubliette.runtime.store import Database

    with pytest.raises(ConfigError):
        Database(Path("/proc/store.db"))  # not even root makes files there
