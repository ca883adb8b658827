"""A server that goes away: the writer pauses, loses nothing, stores nothing twice, and goes on."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from oubliette.errors import ConfigError, StorageUnavailable
from oubliette.runtime.store import operations, queries
from tests.postgres import PostgresServer
from tests.unit.runtime.store.conftest import Store
from tests.unit.runtime.store.postgres.cutting_proxy import CuttingProxy
from tests.unit.runtime.store.processes import WritingProcess
from tests.unit.runtime.store.samples import event, opened
from tests.unit.runtime.store.test_crashes import check
from tests.unit.runtime.store.test_writer import States

pytestmark = pytest.mark.requires("postgres")

LONG = 60.0


def counted(number: int) -> tuple[operations.Op, ...]:
    """A transaction of which it shows when it is stored twice."""
    return operations.AppendEvents((event(number),)), operations.BumpMeta("count")


@pytest.fixture
def states() -> States:
    return States()


@pytest.fixture
def store(own_postgres: PostgresServer, states: States):
    """A store on a server that the test may end."""
    database = opened(own_postgres.new_database())
    store = Store(database, on_state=states, hold_seconds=LONG)
    with contextlib.closing(store.start()):
        yield store


def stored(store: Store) -> tuple[int, int]:
    """How many events there are, and how many transactions were applied."""
    events = store.read(queries.log, "s1", -1, 10_000).events
    return len(events), int(store.read(queries.meta, "count") or 0)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_waits_while_the_server_is_away_is_stored_once_it_is_back(
    store, own_postgres, states, end
):
    store.write(*counted(0))
    getattr(own_postgres, end)()
    waiting = [store.writer.submit(counted(number)) for number in range(1, 4)]
    assert "\n" not in states.wait_for("paused")
    assert not any(each.done() for each in waiting)
    with pytest.raises(StorageUnavailable, match="cannot be read"):
        store.read(queries.meta, "count")
    own_postgres.start()
    for number, each in enumerate(waiting, 1):
        assert each.result(LONG)[1] == number + 1
    states.wait_for("running")
    assert stored(store) == (4, 4)


def test_what_waits_too_long_is_refused_and_not_stored(own_postgres, states):
    database = opened(own_postgres.new_database())
    with contextlib.closing(Store(database, on_state=states, hold_seconds=0.2).start()) as store:
        store.write(*counted(0))
        own_postgres.stop()
        with pytest.raises(StorageUnavailable, match="nothing can be stored"):
            store.write(*counted(1))
        own_postgres.start()
        states.wait_for("running")
        store.write(*counted(1))
        assert stored(store) == (2, 2)


def test_connections_that_the_server_ends_are_made_again(store, own_postgres):
    store.write(*counted(0))
    assert stored(store) == (1, 1)
    own_postgres.end_connections()
    assert stored(store) == (1, 1)
    store.write(*counted(1))
    assert stored(store) == (2, 2)


def test_a_database_that_only_reads_holds_writes_back(store, own_postgres, states):
    store.write(*counted(0))
    own_postgres.execute("ALTER DATABASE t1 SET default_transaction_read_only = on")
    own_postgres.end_connections()
    waiting = store.writer.submit(counted(1))
    states.wait_for("paused", saying="read-only")
    assert stored(store) == (1, 1)
    own_postgres.execute("ALTER DATABASE t1 RESET default_transaction_read_only")
    own_postgres.end_connections()
    assert waiting.result(LONG)[1] == 2
    assert stored(store) == (2, 2)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_stored_once(postgres_server, postgres_url, tmp_path, cut):
    proxy = CuttingProxy(tmp_path, postgres_server.folder, cut)
    url = postgres_url.replace(str(postgres_server.folder), str(tmp_path))
    try:
        with contextlib.closing(Store(opened(url), hold_seconds=LONG).start()) as store:
            for number in range(20):  # of one and of many
                proxy.armed = number % 3 == 0
                first = store.writer.submit(counted(2 * number))
                second = store.writer.submit(counted(2 * number + 1))
                assert first.result(LONG)[1] == 2 * number + 1
                assert second.result(LONG)[1] == 2 * number + 2
            assert stored(store) == (40, 40)
            assert proxy.cuts > 1
    finally:
        proxy.close()


def test_a_server_that_is_killed_again_and_again_has_all_that_was_acknowledged(own_postgres):
    url = own_postgres.new_database()
    process = WritingProcess(url, "--hold", "60")
    try:
        for _ in range(4):
            process.wait_for("ack", count=random.randrange(1, 400))
            own_postgres.kill()
            own_postgres.start()
        process.wait_for("ack", count=20)
        assert process.finish() == 0
        assert not process.said("error")
        check(url, process.acknowledged)
    finally:
        process.finish(kill=True)


def test_a_server_that_does_not_answer_at_the_start_is_an_error_of_the_configuration(tmp_path):
    with pytest.raises(ConfigError, match="store.database"):
        opened(f"postgresql://me:secret@/name?host={tmp_path}")


def test_the_error_of_a_connection_does_not_tell_the_password(tmp_path):
    with pytest.raises(ConfigError) as caught:
        opened(f"postgresql://me:secret@/name?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_machines_that_start_together_make_the_schema_once(postgres_url):
    failures: list[BaseException] = []

    def start() -> None:
        try:
            opened(postgres_url).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert failures == []
