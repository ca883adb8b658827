"""Shares of limits: what each node may use of a principal's limit without asking.

A limit has a pool, from which a node takes a share in one transaction and to which it gives back
what it does not use. What no node has and what all nodes have is never more than the limit. All
values are absolute, so a statement that is repeated because its answer was lost counts once.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.runtime.store.postgres.fence import refusal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from oubliette.runtime.store.postgres.fence import NodeFence

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CHANNEL: Final = "oubliette_shares"
"""Channel of recalls: `NUMBER NODE SCOPE`, and `0 NODE SCOPE` when a node has answered one."""

_SETTLE: Final = """
SELECT place, granted, recalling, seconds, nodes_now FROM settle_shares(
  %s, %s, %s::text[], %s::double precision[], %s::bigint[], %s::bigint[], %s::bigint[],
  %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]
)
"""


@dataclass(frozen=True, slots=True)
class ShareStatement:
    """Statement of a node: what it keeps and wants of one scope."""

    scope: str
    rate: float | None
    """Units by which the pool refills in a second; None: units are given back after use."""
    most: int
    """The limit, the same on all nodes."""
    keep: int
    """Units that the node has: those in use, and those that it keeps for use."""
    spent: int
    """Units that it has used up since it has known the scope."""
    known: int
    """Those of them that the latest answer has confirmed."""
    need: int
    """Units for calls that wait."""
    spare: int
    """Further units that it takes if they are free."""
    answer: int
    """Number of the recall that this answers; 0: none."""
    recall: int
    """Number of the recall whose answers the node waits for; 0: none."""


@dataclass(frozen=True, slots=True)
class ShareGrant:
    """Grant of units of one scope to a node."""

    granted: int
    """Units beside those that it keeps."""
    recalling: int
    """Number of a recall that others have not answered yet; 0: this is all that there is."""
    seconds: float
    """Seconds until the pool has refilled by a unit, if less was granted than needed."""


def settle(
    connection: Connection, fence: NodeFence, statements: Sequence[ShareStatement]
) -> tuple[list[ShareGrant], int]:
    """Settle statements in one transaction; return the grants, in order, and the number of nodes.

    Args:
        connection: One that is in no transaction. Others that settle the same scopes wait for it.
        fence: Epoch of the node; its shares are released when it is gone.
        statements: At least one; each of another scope.

    Raises:
        StaleNode: the epoch has ended; nothing was settled.
    """
    values = (
        *fence.parameters,
        [each.scope for each in statements],
        [each.rate for each in statements],
        [each.most for each in statements],
        [each.keep for each in statements],
        [each.spent for each in statements],
        [each.known for each in statements],
        [each.need for each in statements],
        [each.spare for each in statements],
        [each.answer for each in statements],
        [each.recall for each in statements],
    )
    try:
        rows = connection.execute(_SETTLE, values).fetchall()
    except psycopg.DatabaseError as error:
        refused = refusal(error)
        if refused is not None:
            raise refused from error
        raise
    rows.sort()
    grants = [ShareGrant(granted, recalling, seconds) for _, granted, recalling, seconds, _ in rows]
    return grants, rows[0][-1]


def release(connection: Connection, fence: NodeFence) -> None:
    """Release all shares of a node, at its end; no effect if its epoch has ended."""
    connection.execute(
        "SELECT release_shares_of(name) FROM nodes WHERE name = %s AND epoch = %s", fence.parameters
    )


def forget_full(connection: Connection) -> None:
    """Delete the rows of pools that are full and of which no node has anything."""
    connection.execute("SELECT forget_pools()")


def count_nodes(connection: Connection) -> int:
    """The number of nodes that are not gone, the limits' parts while the database is away."""
    row = connection.execute("SELECT count(*) FROM nodes WHERE state <> 'gone'").fetchone()
    return 1 if row is None else max(1, int(row[0]))


def held(connection: Connection, scope: str) -> dict[str, int]:
    """Return what each node has of a scope."""
    rows = connection.execute("SELECT node, held FROM limit_shares WHERE scope = %s", (scope,))
    return {node: int(units) for node, units in rows}
