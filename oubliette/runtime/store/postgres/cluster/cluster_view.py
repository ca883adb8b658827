"""View of a cluster in its database, for people: nodes, what is on them, and the log's delay."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from oubliette.config.secret_names import url_to_show
from oubliette.errors import NotFound, StorageUnavailable
from oubliette.records import Record
from oubliette.runtime.store.log_order import EVENTS
from oubliette.runtime.store.postgres.cluster import nodes
from oubliette.runtime.store.postgres.cluster.node_records import NodeRecord
from oubliette.runtime.store.postgres.control_connection import control_connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_T = TypeVar("_T")

_PROJECTS: Final = "SELECT node, count(*) FROM placements GROUP BY node"
_LIVE: Final = """
SELECT node, count(*) FROM sessions JOIN placements USING (project_id) WHERE live = 1 GROUP BY node
"""
_HELD: Final = """
SELECT count(*) FROM events WHERE seq > pg_snapshot_xmin(pg_current_snapshot())::text::bigint
  * %s + (SELECT "offset" FROM log_order) - 1
"""
_OLDEST: Final = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND datname = current_database()
"""


class NodeView(Record, frozen=True):
    """One node, with what is on it."""

    node: NodeRecord
    projects: int
    """Projects that have their home on it."""
    live_sessions: int


class ClusterView(Record, frozen=True):
    """A cluster, as of the moment at which the database was read."""

    nodes: tuple[NodeView, ...]
    held_events: int
    """Events that are committed and not given to readers yet: an older transaction is open."""
    open_seconds: float
    """Age of the oldest transaction that writes; readers are at most so far behind."""


def cluster_view(url: str) -> ClusterView:
    """The cluster of a database.

    Raises:
        NotFound: the database has none.
        StorageUnavailable: it does not answer.
    """
    return _asked(url, _view)


def drain(url: str, name: str, *, draining: bool) -> None:
    """Let a node take no more projects, or let it take them again.

    Raises:
        NotFound: there is no such node, or it is gone; or the database has no cluster.
        StorageUnavailable: the database does not answer.
    """
    _asked(url, lambda connection: nodes.set_draining(connection, name, draining=draining))


def _view(connection: Connection) -> ClusterView:
    projects = dict(connection.execute(_PROJECTS).fetchall())
    live = dict(connection.execute(_LIVE).fetchall())
    return ClusterView(
        nodes=tuple(
            NodeView(
                node=node,
                projects=projects.get(node.name, 0),
                live_sessions=live.get(node.name, 0),
            )
            for node in nodes.all_nodes(connection)
        ),
        held_events=_one(connection.execute(_HELD, (EVENTS,))),
        open_seconds=_one(connection.execute(_OLDEST)),
    )


def _one(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row[0]


def _asked(url: str, ask: Callable[[Connection], _T]) -> _T:
    try:
        with contextlib.closing(control_connection(url, "command")) as connection:
            return ask(connection)
    except psycopg.errors.UndefinedTable as error:
        raise NotFound(
            f"{url_to_show(url)} has no cluster", hint="start one; it makes its tables"
        ) from error
    except psycopg.Error as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StorageUnavailable(
            f"{url_to_show(url)} does not answer: {reason}",
            hint="look whether the server runs, and try the URL with psql",
        ) from error
