"""A trial cluster's folder and its nodes' configuration; nothing is started here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oubliette.cluster import trial, trial_postgres, trial_servers
from oubliette.config.loader import load
from oubliette.errors import ConfigError, Conflict, NotFound

URL = "postgresql://db.example/cluster"


class Started(Exception):
    """In the place of Ray's start."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    def stop_here(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setattr(trial, "up", stop_here)
    monkeypatch.setattr(trial_servers, "check_packages", lambda: None)
    base = Path(tempfile.mkdtemp(prefix="obs", dir="/tmp"))
    yield base / "t"
    shutil.rmtree(base)


def up(folder: Path, **options) -> None:
    with pytest.raises(Started):
        trial_servers.up(folder, 3, **({"database": URL} | options))


def ports(folder: Path) -> list[int]:
    return [load(folder / f"node{n}", environ={}).config.server.port for n in (1, 2, 3)]


def test_each_node_has_a_home_with_the_database_and_a_port_of_its_own(folder: Path) -> None:
    up(folder)
    assert len(set(ports(folder))) == 3
    config = load(folder / "node2", environ={}).config
    assert config.store.database == URL
    assert config.server.host == "127.0.0.1"
    assert config.server.on_stop == "end"
    assert config.containers.runtime_dir == str(folder / "node2" / "run")


def test_others_can_read_neither_the_homes_nor_the_address_of_the_database(folder: Path) -> None:
    up(folder)
    assert (folder / "node1").stat().st_mode & 0o777 == 0o700
    assert (folder / "node1" / "oubliette.toml").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o066 == 0


def test_ports_stay_the_same_and_can_be_chosen_at_the_first_start_alone(folder: Path) -> None:
    up(folder, first_port=18080)
    assert ports(folder) == [18080, 18081, 18082]
    up(folder)
    assert ports(folder) == [18080, 18081, 18082]
    with pytest.raises(Conflict, match=r"has another server\.port, 18080"):
        trial_servers.up(folder, 3, database=URL, first_port=19090)


def test_a_setting_of_the_user_stays(folder: Path) -> None:
    up(folder)
    file = folder / "node1" / "oubliette.toml"
    file.write_text(file.read_text() + '\n[agents]\ndefault = "scripted"\n')
    up(folder)
    assert load(folder / "node1", environ={}).config.agents.default == "scripted"


def test_another_database_is_refused_and_none_is_shown(folder: Path) -> None:
    up(folder, database="postgresql://u:s3cret@db/x")
    with pytest.raises(Conflict) as refused:
        trial_servers.up(folder, 3, database=URL)
    assert "store.database" in refused.value.message
    assert "s3cret" not in str(refused.value)


def test_a_long_path_is_refused_with_a_short_one(folder: Path) -> None:
    with pytest.raises(ConfigError, match="35 are possible") as refused:
        trial_servers.up(folder / ("x" * 30), 3, database=URL)
    assert "--folder /tmp/" in (refused.value.hint or "")
    assert not folder.exists()


def test_a_folder_with_other_files_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="has other files"):
        trial_servers.up(folder, 3, database=URL)
    with pytest.raises(NotFound):
        trial_servers.down(folder, purge=True)
    assert (folder / "thesis.tex").exists()


def test_a_folder_that_is_a_link_is_refused(folder: Path) -> None:
    folder.symlink_to("/tmp")
    with pytest.raises(ConfigError, match="is not a folder of this user"):
        trial_servers.up(folder, 3, database=URL)


@pytest.mark.parametrize("database", ["sqlite:/x", "db.example", "mysql://x"])
def test_another_kind_of_database_is_refused(folder: Path, database: str) -> None:
    with pytest.raises(ConfigError, match="--database: a cluster needs a PostgreSQL"):
        trial_servers.up(folder, 3, database=database)


def test_a_machine_without_postgres_gets_the_ways_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_postgres, "folder_of_programs", lambda: None)
    with pytest.raises(ConfigError, match="needs PostgreSQL") as refused:
        trial_servers.up(folder, 3)
    assert "apt-get install postgresql" in (refused.value.hint or "")
    assert "--database postgresql://" in (refused.value.hint or "")


def test_two_commands_at_once_are_refused(folder: Path) -> None:
    from oubliette.runtime.files.home import HomeLock

    up(folder)
    with HomeLock(folder), pytest.raises(Conflict, match="this process"):
        trial_servers.down(folder)


def test_a_cluster_that_has_ended_can_be_removed(folder: Path) -> None:
    up(folder)
    assert not trial_servers.down(folder)
    assert folder.exists()
    assert not trial_servers.down(folder, purge=True)
    assert not folder.exists()


def test_keys_of_the_user_and_settings_of_one_server_do_not_reach_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUBLIETTE_KEY", "oub_x")
    monkeypatch.setenv("OUBLIETTE_HOME", "/elsewhere")
    monkeypatch.setenv("OUBLIETTE_SERVER__PORT", "1")
    monkeypatch.setenv("OUBLIETTE_STORE__DATABASE", URL)
    monkeypatch.setenv("OUBLIETTE_AGENTS__DEFAULT", "scripted")
    found = trial_servers._environment()
    assert {name for name in found if name.startswith("OUBLIETTE_")} == {
        "OUBLIETTE_AGENTS__DEFAULT"
    }
