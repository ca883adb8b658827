"""Order of events that several machines store at once.

PostgreSQL gives every transaction a number when it begins to write, and transactions commit in any
order. The seq of an event is the number of its transaction, times `EVENTS`, plus its place in it.
All transactions below the oldest open one have ended, so all their events can be seen or will
never be: up to there, the *horizon*, a reader may read. An open transaction has a higher number,
and so have its events; no reader passes them by, and none waits for them longer than they are open.

The numbers are 64 bits wide (`xid8`) and do not wrap. Up to 2^37 transactions, a seq is exact in
clients whose numbers are doubles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.runtime.store.connection import StoreConnection

EVENTS: Final = 1 << 16
"""Events that one transaction may store."""

HORIZON: Final = f"""
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint * {EVENTS}
  + (SELECT "offset" FROM log_order) - 1 AS seq"""  # noqa: S608 - a number of ours
"""Query for the highest seq up to which the events of its view are complete."""


def horizon(connection: StoreConnection) -> int:
    """The highest seq up to which the events of this view are complete."""
    return connection.execute(HORIZON).fetchone()[0]
