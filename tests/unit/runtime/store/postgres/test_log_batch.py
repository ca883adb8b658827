"""What an append costs does not depend on how long the log is."""

from __future__ import annotations

import contextlib
import re

import pytest

from oubliette.runtime.store import operations
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.postgres.log_batch import LOGS, SOURCES
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.conftest import Store
from tests.unit.runtime.store.postgres.cutting_proxy import CuttingProxy
from tests.unit.runtime.store.samples import event

pytestmark = pytest.mark.requires("postgres")

MANY = 20_000


@pytest.fixture
def connection(url):
    database = PostgresDatabase(url)
    with contextlib.closing(Store(database).start()) as store:
        for session in ("long", "longer"):
            events = (event(n, session, source=f"proc:{n}:0") for n in range(MANY))
            store.write(operations.AppendEvents(tuple(events)))
    with contextlib.closing(database.connect()) as connection:
        connection.execute("VACUUM ANALYZE events")
        yield connection


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        # What is known of the log is asked with the beginning, and the COMMIT comes with the rest.
        ([operations.PutMeta("k", "v")], 2),
        ([operations.AppendEvents((event(-1, source="p:1:0"), event(-1)))], 2),
        (
            [operations.AppendEvents((event(-1),)), operations.PutCallerRequest(samples.request())],
            3,
        ),
    ],
)
def test_a_transaction_waits_for_the_server_as_rarely_as_it_can(
    postgres_url, postgres_server, tmp_path, ops, expected
):
    proxy = CuttingProxy(tmp_path, postgres_server.folder, "before")
    try:
        url = postgres_url.replace(str(postgres_server.folder), str(tmp_path))
        with contextlib.closing(Store(PostgresDatabase(url)).start()) as store:
            store.write(operations.PutMeta("k", "connects"))
            before = proxy.round_trips
            store.write(*ops)
            assert proxy.round_trips - before == expected
    finally:
        proxy.close()


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        (LOGS, (["long", "longer", "new"],)),
        (SOURCES, (["long", "longer", "new"], [f"proc:{MANY - n}:0" for n in range(3)])),
    ],
)
def test_what_is_known_of_long_logs_is_read_in_some_steps(connection, sql, values):
    plan = connection.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {sql}", values).fetchall()
    told = "\n".join(line for (line,) in plan)
    rows = [int(number) for number in re.findall(r"actual rows=(\d+)", told)]
    removed = [int(number) for number in re.findall(r"Rows Removed by Filter: (\d+)", told)]
    assert max(rows + removed) < 20, told
