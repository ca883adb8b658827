"""Reads that happen all the time find their rows by an index of PostgreSQL too."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.errors import OublietteError
from oubliette.runtime.store import operations
from oubliette.runtime.store.execute import perform
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.conftest import Store
from tests.unit.runtime.store.test_plans import READS, WRITES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.runtime.store.connection import StoreConnection
    from oubliette.runtime.store.postgres.database import PostgresDatabase

pytestmark = pytest.mark.requires("postgres")

FEW = {
    "sessions_live",
    "caller_requests_open",
    "permissions_open",
    "projects_existing",
    "trims_pkey",
}
"""Indexes of what is live, open, there or cut only: walking one of these is walking what is asked for."""
ONE_ROW = "log_order"
PUT = [each for each in WRITES if not isinstance(each, operations.AppendEvents)]
"""Writes but for events, which `log_batch` inserts: a look-up of each would be a whole batch's."""


class Explained:
    """A connection that also explains each statement, to a planner that shuns whole tables."""

    dialect = "postgresql"

    def __init__(self, database: PostgresDatabase, connection: Any) -> None:
        self.database = database
        self._connection = connection
        self.plans: list[tuple[str, dict[str, Any]]] = []
        connection.execute("SET enable_seqscan = off")

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        explained = self._connection.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        (((plan,),),) = explained.fetchall()
        self.plans.append((sql, plan["Plan"]))
        return self._connection.execute(sql, parameters)

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """A transaction that is rolled back; what it refuses is explained before."""
        self._connection.execute("BEGIN")
        try:
            with contextlib.suppress(OublietteError):
                yield
        finally:
            self._connection.execute("ROLLBACK")


def walks(plan: dict[str, Any]) -> Iterator[str]:
    """The whole tables and indexes that a plan walks."""
    kind, index = plan["Node Type"], plan.get("Index Name")
    if kind == "Seq Scan" and plan["Relation Name"] != ONE_ROW:
        yield plan["Relation Name"]
    elif index is not None and "Index Cond" not in plan and index not in FEW:
        yield index
    for part in plan.get("Plans", ()):
        yield from walks(part)


@pytest.fixture(scope="module")
def explained(postgres_server: Any, migrated: str) -> Iterator[Explained]:
    from oubliette.runtime.store.postgres.database import PostgresDatabase

    url = postgres_server.new_database(migrated)
    database = PostgresDatabase(url)
    with contextlib.closing(Store(database).start()) as store:
        store.write(*WRITES[:5], operations.PutSession(samples.session(2, status="failed")))
        connection = database.connect_read_only()
        yield Explained(database, connection)
        database.release(connection)
    postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def writing(explained: Explained) -> Iterator[Explained]:
    """The same database, to write to."""
    connection = explained.database.connect()
    yield Explained(explained.database, connection)
    explained.database.release(connection)


@pytest.mark.parametrize(("query", "arguments"), READS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_frequent_read_finds_its_rows_by_an_index(
    explained: Explained, query: Any, arguments: tuple[Any, ...]
) -> None:
    explained.plans.clear()
    query(explained, *arguments)
    assert explained.plans
    assert [(sql, walk) for sql, plan in explained.plans for walk in walks(plan)] == []


@pytest.mark.parametrize("operation", PUT, ids=lambda op: type(op).__name__)
def test_a_frequent_write_finds_its_rows_by_an_index(
    writing: Explained, operation: operations.Op
) -> None:
    writing.plans.clear()
    with writing.undone():
        perform(cast("StoreConnection", writing), (operation,))
    assert writing.plans
    assert [(sql, walk) for sql, plan in writing.plans for walk in walks(plan)] == []


def test_a_walk_through_a_whole_table_would_be_noticed(explained: Explained) -> None:
    explained.plans.clear()
    explained.execute("SELECT data FROM tokens")
    assert [*walks(explained.plans[-1][1])] == ["tokens"]
