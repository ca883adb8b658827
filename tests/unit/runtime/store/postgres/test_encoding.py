"""A database that does not keep text as UTF-8 is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.requires("postgres")


def test_a_database_in_ascii_is_refused_by_its_name(postgres_server: PostgresServer) -> None:
    from oubliette.runtime.store.postgres.database import PostgresDatabase  # noqa: PLC0415

    url = postgres_server.new_database("template0 ENCODING 'SQL_ASCII'")
    try:
        with pytest.raises(ConfigError, match="has the encoding SQL_ASCII, and") as refused:
            PostgresDatabase(url)
    finally:
        postgres_server.drop_database(url)
    assert "-E UTF8" in (refused.value.hint or "")
