"""Counting locks that all nodes share: at most N holders of each scope.

A scope is one thing that is limited, such as `calls:PRINCIPAL`; a holder is one that counts there,
such as a request. The database counts, in the transaction that claims, so the limit is exact
however many nodes claim at the same moment. A claim that is repeated counts once, also where it is
repeated by another node, until the last of them has released it.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from oubliette.runtime.store.postgres.fence import refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import LiteralString, TypeAlias

    from oubliette.runtime.store.postgres.fence import NodeFence

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class LimitClaim:
    """Claim of a holder in a scope."""

    holder: str
    scope: str
    most: int | None
    """Maximum of holders of the scope, the same for all that claim it; None: count this one in any
    case."""


def settle(
    connection: Connection,
    fence: NodeFence,
    *,
    released: Iterable[str] = (),
    claims: Sequence[LimitClaim] = (),
) -> set[str]:
    """Release and claim in one transaction; return the holders whose claims are refused.

    What these holders have on this node in any scope is released first. Of the claims of a scope,
    the first ones that fit are granted. Settling the same again has no effect.

    Args:
        connection: One that is in no transaction. Others that settle the same scopes wait for it.
        fence: Epoch of the node that the holders are on; they are released when it is gone.
        released: Holders.
        claims: Claims.

    Raises:
        StaleNode: the epoch has ended; nothing was settled.
    """
    values = (
        *fence.parameters,
        list(released),
        [claim.holder for claim in claims],
        [claim.scope for claim in claims],
        [claim.most for claim in claims],
    )
    sql = "SELECT settle_claims(%s, %s, %s::text[], %s::text[], %s::text[], %s::bigint[])"
    return {holder for (holder,) in _fenced(connection, sql, values)}


def release_earlier(connection: Connection, fence: NodeFence) -> None:
    """Release what earlier epochs of a node have claimed, before this one claims.

    The open calls of its live sessions stay counted: it is about to recover these sessions.

    Raises:
        StaleNode: the epoch has ended.
    """
    _fenced(connection, "SELECT release_earlier_claims(%s, %s)", fence.parameters)


def used(connection: Connection, scope: str) -> int:
    """The number of holders of a scope."""
    row = connection.execute("SELECT used FROM limit_counts WHERE scope = %s", (scope,)).fetchone()
    return 0 if row is None else int(row[0])


def _fenced(
    connection: Connection, sql: LiteralString, values: Sequence[Any]
) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(sql, values).fetchall()
    except psycopg.DatabaseError as error:
        refused = refusal(error)
        if refused is not None:
            raise refused from error
        raise
