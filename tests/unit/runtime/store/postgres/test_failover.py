"""A standby that takes over, and a server after a crash, has all that was acknowledged.

Both give numbers of transactions out a second time, of those that had stored nothing.
"""

from __future__ import annotations

import contextlib

import pytest

from oubliette.runtime.store import operations, queries
from tests.postgres import PostgresServer
from tests.unit.runtime.store.conftest import Store
from tests.unit.runtime.store.processes import WritingProcess
from tests.unit.runtime.store.samples import event, opened
from tests.unit.runtime.store.test_crashes import check

pytestmark = [pytest.mark.requires("postgres"), pytest.mark.whole]

LONG = 60.0


def test_what_was_acknowledged_before_the_standby_took_over_is_there(own_postgres: PostgresServer):
    url = own_postgres.new_database()
    opened(url).close()
    with own_postgres.standby() as standby:
        process = WritingProcess(own_postgres.url_with(standby, url), "--hold", "60")
        try:
            process.wait_for("ack", count=200)
            own_postgres.kill()
            process.wait_for("state", "paused")
            standby.promote()
            process.wait_for("state", "running")
            process.wait_for("ack", count=50)
            assert process.finish() == 0
            assert not process.said("error")
            check(standby.url("t1"), process.acknowledged)
        finally:
            process.finish(kill=True)


@pytest.mark.parametrize("ops", ["events", "none"])
def test_a_commit_that_the_standby_never_had_is_repeated_though_its_number_was_given_again(
    own_postgres: PostgresServer, ops: str
):
    """The server that takes over says of that number that it is committed: it is another's."""
    url = own_postgres.new_database()
    append = (operations.AppendEvents((event(0),)),) if ops == "events" else ()
    with contextlib.closing(Store(opened(url), hold_seconds=LONG).start()) as store:
        with own_postgres.standby() as standby:
            standby.stop_following()
            waiting = store.writer.submit((*append, operations.BumpMeta("count")))
            own_postgres.wait_for("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            ((number,),) = own_postgres.execute("SELECT pg_current_xact_id()::text::bigint")
            own_postgres.kill()
            standby.promote()
            standby.execute("CREATE TABLE others (number bigint)", database="t1")
            while (
                standby.execute(
                    "INSERT INTO others VALUES (1) RETURNING pg_current_xact_id()::text::bigint",
                    database="t1",
                )[0][0]
                <= number
            ):
                pass
            own_postgres.give_address_to(standby)
            assert waiting.result(LONG)[-1] == 1
            assert len(store.read(queries.log, "s1", -1, 10).events) == len(append)
            assert store.read(queries.meta, "count") == "1"


def test_a_cursor_passes_no_event_by_whose_number_was_given_before_a_crash():
    """Commits of transactions that have changed nothing are not flushed, but others see their end."""
    with PostgresServer(wal_writer_delay="10s") as server:
        url = server.new_database()
        with contextlib.closing(Store(opened(url), hold_seconds=LONG).start()) as store:
            store.write(operations.AppendEvents((event(0),)))
            server.execute("CHECKPOINT")
            numbers = [
                server.execute("SELECT pg_current_xact_id()::text::bigint") for _ in range(9)
            ]
            cursor = store.read(queries.last_seq)
            server.kill()
            server.start()
            ((added,),) = store.write(operations.AppendEvents((event(1),)))
            assert added.seq >> 16 <= numbers[-1][0][0], "it was given again"
            assert added.seq > cursor
            assert store.read(queries.committed_events, cursor).events == [added]
