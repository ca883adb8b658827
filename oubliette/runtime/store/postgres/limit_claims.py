"""Claims of limits that hold over all nodes: so many holders of a scope, and no more.

A scope is one thing that is limited, such as `calls:PRINCIPAL` or `agents:TREE`; a holder is one
that counts there, such as a request or a session. The database counts, in the transaction that
claims, so the limit is exact however many nodes claim at the same moment. A claim that is repeated
counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from oubliette.errors import LimitExceeded
from oubliette.runtime.store.postgres.fence import FULL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


def claim(connection: Connection, holder: str, limits: Mapping[str, int], *, node: str) -> None:
    """Count a holder in each of the scopes, or in none.

    In a transaction, other claims of the same scopes wait for its end.

    Args:
        connection: Any connection; in a transaction, the claim is part of it.
        holder: The holder, the same one when a claim is repeated.
        limits: Maximum of holders, by scope.
        node: Node that the holder is on; its claims are released when it is gone.

    Raises:
        LimitExceeded: one of the scopes is full. A transaction is aborted.
        psycopg.Error: the database failed.
    """
    scopes = sorted(limits)
    values = (holder, node, scopes, [limits[scope] for scope in scopes])
    try:
        connection.execute("SELECT claim_limits(%s, %s, %s::text[], %s::bigint[])", values)
    except psycopg.DatabaseError as error:
        if error.sqlstate != FULL:
            raise
        place, used = (error.diag.message_detail or "1 0").split()
        scope = scopes[int(place) - 1]
        raise LimitExceeded(f"{scope}: the limit is {limits[scope]}, {used} are taken") from error


def release(connection: Connection, holder: str, scopes: Iterable[str] | None = None) -> None:
    """Release what a holder has claimed: in these scopes, or in all. Again: no effect.

    Raises:
        psycopg.Error: the database failed.
    """
    chosen = None if scopes is None else sorted(scopes)
    connection.execute("SELECT release_limits(%s, %s::text[])", (holder, chosen))


def keep_only(connection: Connection, node: str, holders: Iterable[str]) -> None:
    """Release what a node has claimed, but for these holders; for a node that was started again.

    Raises:
        psycopg.Error: the database failed.
    """
    connection.execute("SELECT release_limits_of(%s, %s::text[])", (node, sorted(holders)))


def used(connection: Connection, scope: str) -> int:
    """Return the number of holders of a scope.

    Raises:
        psycopg.Error: the database failed.
    """
    row = connection.execute("SELECT used FROM limit_counts WHERE scope = %s", (scope,)).fetchone()
    return 0 if row is None else int(row[0])
