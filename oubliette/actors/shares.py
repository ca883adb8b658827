"""Shares, the port through which limits that each call counts hold over all nodes of a cluster.

A node has a part of each limit that it uses without asking; a call waits only for the part that its
node has not got yet. A server that is alone has none: what it counts itself is all that there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ShareLimit:
    """A limit of units that are given back after use, or that refill at a rate."""

    most: int
    """Units at once, on all nodes together."""
    rate: float | None = None
    """Units by which it refills in a second; None: they are given back."""


class Shares(Protocol):
    """Units of limits. A scope is what is limited, such as `in_flight:PRINCIPAL`."""

    async def take(self, scope: str, limit: ShareLimit) -> float | None:
        """Take a unit; return None, or, if all are used, the seconds until there may be one.

        It waits only while this node has none and others may have: a fraction of a second. It does
        not fail while the database is away, and one that is cancelled leaves nothing behind.

        Args:
            scope: The scope.
            limit: Its limit, the same at each call.
        """
        ...

    def take_anyway(self, scope: str, limit: ShareLimit) -> None:
        """Take a unit that is given back, whether there is one or not."""
        ...

    def give_back(self, scope: str) -> None:
        """Give back a unit that was taken of a limit without a rate."""
        ...
