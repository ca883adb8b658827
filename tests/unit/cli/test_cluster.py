"""`oubliette cluster …` without Ray: usage, and what is read from and written to the database."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.cluster.agent_state import write_state
from oubliette.cluster.node_homes import configure

if TYPE_CHECKING:
    from tests.unit.cli.command_line import Run

FIRST_WORDS = ("cluster",)


@pytest.fixture
def database(postgres_url: str) -> str:
    """A database with two nodes, of which one has a project with a live session."""
    import psycopg

    from oubliette.runtime.store.postgres.cluster.node_records import NodeOffer
    from oubliette.runtime.store.postgres.cluster.nodes import take_epoch
    from oubliette.runtime.store.postgres.cluster.placements import place
    from oubliette.runtime.store.postgres.database import PostgresDatabase

    PostgresDatabase(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name in ("alpha", "beta"):
            take_epoch(connection, name, f"http://{name}:8080/mcp", NodeOffer())
        place(connection, "proj_1", "beta")
    return postgres_url


def nodes(run: Run, *words: str) -> dict[str, dict[str, Any]]:
    done = run("status", *words, "-o", "json")
    assert done.code == 0, done.err
    return {each["node"]: each for each in json.loads(done.out)["nodes"]}


@pytest.mark.requires("postgres")
def test_the_status_is_read_from_the_database(run: Run, database: str) -> None:
    found = nodes(run, "--database", database)
    assert set(found) == {"alpha", "beta"}
    assert 5 < found["beta"].pop("lease_seconds") <= 10
    assert found["beta"].pop("uptime_seconds") < 60
    assert found["beta"] == {
        "node": "beta",
        "state": "running",
        "draining": False,
        "epoch": 1,
        "projects": 1,
        "live_sessions": 0,
        "url": "http://beta:8080/mcp",
        "failure": None,
    }
    table = run("status", "--database", database)
    assert table.out.splitlines()[0].split("\t")[:4] == ["NODE", "STATE", "LEASE", "EPOCH"]
    assert "beta\trunning\t" in table.out


@pytest.mark.requires("postgres")
def test_the_home_of_a_node_names_the_database(run: Run, home: Path, database: str) -> None:
    configure(home / "alpha", {"store.database": database}, command="x")
    assert "beta" in nodes(run, "--home", str(home / "alpha"))


@pytest.mark.requires("postgres")
def test_the_status_has_the_latest_failure_of_the_node_in_a_home(
    run: Run, home: Path, database: str
) -> None:
    configure(home / "alpha", {"store.database": database}, command="x")
    now = time.time()
    failure = {"reason": "ConfigError: no", "at": now - 9, "count": 3, "again_at": now + 20}
    error = {"node": "alpha", "state": "failed", "ready": False, "error": "ConfigError: no"}
    write_state(home / "alpha", error | {"failure": failure})
    words = ("--home", str(home / "alpha"))
    assert nodes(run, *words)["alpha"]["failure"] == failure
    assert nodes(run, *words)["beta"]["failure"] is None
    said = run("status", *words).err
    assert "alpha: failed: ConfigError: no\n" in said
    assert "s ago: ConfigError: no; 3 failures in a row; starts again in " in said


@pytest.mark.requires("postgres")
def test_a_node_is_drained_until_that_is_undone(run: Run, database: str) -> None:
    done = run("drain", "beta", "--database", database)
    assert (done.code, done.err) == (0, "beta takes no more projects.\n")
    assert nodes(run, "--database", database)["beta"]["draining"]
    assert not nodes(run, "--database", database)["alpha"]["draining"]
    done = run("drain", "beta", "--undo", "--database", database, "-o", "json")
    assert json.loads(done.out) == {"node": "beta", "draining": False}
    assert not nodes(run, "--database", database)["beta"]["draining"]


@pytest.mark.requires("postgres")
def test_a_node_that_is_not_there_cannot_be_drained(run: Run, database: str) -> None:
    done = run("drain", "gamma", "--database", database)
    assert done.code == 3
    assert "there is no node gamma" in done.err


@pytest.mark.requires("postgres")
def test_the_age_of_the_oldest_transaction_that_writes_is_given(run: Run, database: str) -> None:
    import psycopg

    with psycopg.connect(database) as one:
        one.execute("SELECT pg_current_xact_id()")
        log = json.loads(run("status", "--database", database, "-o", "json").out)["log"]
    assert log["held_events"] == 0
    assert log["open_seconds"] > 0


@pytest.mark.requires("postgres")
def test_a_database_without_a_cluster_is_named(run: Run, postgres_url: str) -> None:
    done = run("status", "--database", postgres_url)
    assert done.code == 3
    assert "has no cluster" in done.err


@pytest.mark.parametrize(
    "url",
    ["someone:s3cret@127.0.0.1:1/x", "someone:s3/cret@127.0.0.1:1/x", "a:s3%cret@127.0.0.1/x"],
)
def test_a_database_that_does_not_answer_is_named_without_its_password(run: Run, url: str) -> None:
    pytest.importorskip("psycopg")
    done = run("status", "--database", f"postgresql://{url}")
    assert done.code == 1
    assert "does not answer" in done.err
    assert "s3" not in done.err
    assert "cret" not in done.err


@pytest.mark.requires("postgres")
def test_without_a_cluster_the_ways_to_name_one_are_given(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("oubliette.cluster.trial_servers.default_folder", lambda: tmp_path / "n")
    monkeypatch.delenv("OUBLIETTE_STORE__DATABASE", raising=False)
    done = run("status")
    assert done.code == 2
    assert "--folder of a trial cluster, --database, or --home of a node" in done.err


def test_a_folder_without_a_cluster_has_nothing_to_end(run: Run, tmp_path: Path) -> None:
    done = run("down", "--folder", str(tmp_path), "--purge")
    assert done.code == 3
    assert "has no cluster" in done.err
    assert tmp_path.exists()


def test_only_a_local_cluster_is_started(run: Run) -> None:
    done = run("up", "--nodes", "2")
    assert done.code == 2
    assert "oubliette serve --cluster auto" in done.err


@pytest.mark.parametrize("count", ["0", "21"])
def test_the_number_of_nodes_has_limits(run: Run, count: str) -> None:
    assert run("up", "--local", "--nodes", count).code == 2


def test_without_the_extra_the_command_that_installs_it_is_given(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "oubliette.cluster.trial_servers.find_spec",
        lambda name: None if name == "ray" else found(name),
    )
    done = run("up", "--local", "--folder", str(home / "c"))
    assert done.code == 2
    assert "needs ray, which is not installed" in done.err
    assert "pip install 'oubliette-agents[cluster]'" in done.err


def test_the_variables_for_ray_are_for_the_shell(run: Run, home: Path) -> None:
    refused = run("env")
    assert refused.code == 2
    assert "copy it from the head" in refused.err
    done = run("env", "--head")
    assert done.code == 0, done.err
    assert f"export RAY_AUTH_TOKEN_PATH={home / 'ray-token'}\n" in done.out
    assert "export RAY_gcs_storage=rocksdb\n" in done.out
    assert (home / "ray-token").stat().st_mode & 0o777 == 0o600
    assert (home / "ray-token").read_text() not in done.out
    other = json.loads(run("env", "-o", "json").out)
    assert other["RAY_AUTH_MODE"] == "token"
    assert "RAY_gcs_storage" not in other
