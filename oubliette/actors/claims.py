"""Claims, the port through which the limits of a principal hold over all nodes of a cluster.

A server that is alone has none: what it counts itself is all that there is.
"""

from __future__ import annotations

from typing import Protocol


class Claims(Protocol):
    """Holders of scopes, counted over all nodes.

    A scope is what is limited, such as `calls:PRINCIPAL`; a holder is one that counts there, such
    as a request, under an id of its own.
    """

    async def claim(self, holder: str, scope: str, most: int) -> bool:
        """Count a holder unless the scope is full; return whether it is counted.

        A claim that fails, or is cancelled, leaves nothing behind.

        Args:
            holder: Id of the holder; again: no effect.
            scope: The scope.
            most: Maximum of its holders, on all nodes together.

        Raises:
            StorageUnavailable: it is unknown now whether there is room.
            StaleNode: the epoch of this node has ended.
        """
        ...

    def count(self, holder: str, scope: str) -> None:
        """Count a holder whether the scope is full or not: now, or as soon as that is possible."""
        ...

    def release(self, holder: str) -> None:
        """Release a holder: now, or as soon as that is possible. Again: no effect."""
        ...
