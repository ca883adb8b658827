"""The PostgreSQL of a trial cluster, a real one."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oubliette.cluster import trial_postgres

pytestmark = [
    pytest.mark.requires("postgres"),
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="obp", dir="/tmp"))
    path.chmod(0o711)
    yield path
    trial_postgres.stop(path)
    shutil.rmtree(path, ignore_errors=True)


def execute(url: str, sql: str) -> object:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchone() if cursor.description else None


def test_it_keeps_what_was_committed_over_an_end_and_a_crash(folder: Path) -> None:
    """Steps: start; end; start; kill; start; again while it runs."""
    url = trial_postgres.start(folder, connections=20)
    execute(url, "CREATE TABLE kept AS SELECT 7 AS id")
    assert trial_postgres.stop(folder)
    assert not trial_postgres.stop(folder)
    assert trial_postgres.start(folder, connections=20) == url
    process = trial_postgres.running(folder)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    trial_postgres.start(folder, connections=30)
    assert execute(url, "SELECT id FROM kept") == (7,)
    assert execute(url, "SHOW max_connections") == ("30",)
    after = trial_postgres.running(folder)
    assert trial_postgres.start(folder, connections=20) == url
    assert trial_postgres.running(folder) == after


def test_it_listens_on_a_socket_in_a_closed_folder_and_knows_one_user(folder: Path) -> None:
    import psycopg

    url = trial_postgres.start(folder, connections=20)
    assert execute(url, "SHOW listen_addresses") == ("",)
    assert execute(url, "SHOW fsync") == ("on",)
    assert (folder / "pg").stat().st_mode & 0o777 == 0o700
    with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
        psycopg.connect(url.replace("oubliette@", "somebody@")).close()


def test_a_process_that_has_the_id_of_one_that_was_killed_is_not_it(folder: Path) -> None:
    (folder / "pg" / "data").mkdir(parents=True)
    (folder / "pg" / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    assert trial_postgres.running(folder) is None
    assert not trial_postgres.stop(folder)
