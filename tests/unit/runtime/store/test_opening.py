"""The database that a configuration names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oubliette.errors import ConfigError
from oubliette.runtime.store import Database
from oubliette.runtime.store.opening import open_database

URL = "postgresql://me:secret@db.example/name"


def test_no_url_is_the_file(tmp_path):
    database = open_database("", tmp_path / "store.db")
    assert isinstance(database, Database)
    assert database.path == tmp_path / "store.db"


def test_a_url_without_the_driver_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    for name in [each for each in sys.modules if each.startswith("oubliette.runtime.store.postg")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"store\.database") as caught:
        open_database(URL, tmp_path / "store.db")
    assert caught.value.hint == "pip install 'oubliette-agents[postgres]'"
    assert "secret" not in str(caught.value)


def test_a_server_with_a_file_does_not_load_the_driver():
    program = "import sys, oubliette.server.startup; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
