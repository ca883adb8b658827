"""A database that cannot be opened is refused with the reason and what to do."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import ConfigError
from oubliette.runtime.store.database import Database
from tests.small_disk import fill, small_disk

if TYPE_CHECKING:
    from pathlib import Path


def test_a_full_disk_is_the_reason_that_an_opening_gives(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8, tmp_path) as disk:
        path = disk / "oubliette.db"
        Database(path).close()
        ballast = fill(disk)
        with pytest.raises(ConfigError) as refused:
            Database(path)
        assert "no transaction" not in refused.value.message
        assert "free some space" in (refused.value.hint or "")
        ballast.unlink()
        Database(path).close()


def test_a_file_that_is_no_database_has_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "oubliette.db"
    path.write_bytes(b"something else " * 1000)
    with pytest.raises(ConfigError) as refused:
        Database(path)
    assert isinstance(refused.value.__cause__, sqlite3.DatabaseError)
    assert "backup" in (refused.value.hint or "")
