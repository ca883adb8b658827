"""Fence around the transactions of a node: they carry its epoch, and fail once that has ended.

A transaction first executes `hold_epoch`. It locks the row of the node, so a new epoch waits for
the transaction, or the transaction for the new epoch, which it then finds; they never both succeed.
A process that was stopped in between and continues hours later has no way around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.errors import NotHere, StaleNode, StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from oubliette.runtime.store.connection import StoreConnection

EPOCH_ENDED: Final = "ND001"
ELSEWHERE: Final = "ND002"
STILL_LIVE: Final = "ND003"
TAKES_NONE: Final = "ND004"
"""SQLSTATE that our functions in the database raise; the server itself has no class ND."""


def _always() -> float:
    return 1.0


class NodeFence:
    """One epoch of a node, carried by each of its transactions.

    The database decides. The node's own count of its lease is asked first: a node that could not
    renew in time begins no transaction, although no other may have ended its epoch yet.

    Args:
        node: Name of the node.
        epoch: Its epoch, as its lease has it.
        seconds_left: Returns the seconds for which the lease surely lasts.
    """

    __slots__ = ("_seconds_left", "epoch", "node")

    def __init__(self, node: str, epoch: int, seconds_left: Callable[[], float] = _always) -> None:
        self.node = node
        self.epoch = epoch
        self._seconds_left = seconds_left

    @property
    def parameters(self) -> tuple[str, int]:
        return self.node, self.epoch

    def check_locally(self) -> None:
        """Check, without the database, that the lease still lasts.

        Raises:
            StorageUnavailable: it may have ended; a later renewal may prove that it has not.
        """
        if self._seconds_left() <= 0:
            raise StorageUnavailable(f"the lease of node {self.node} could not be renewed in time")

    def check(self, connection: StoreConnection) -> Callable[[], None]:
        """Execute the check in the transaction that is open; in a pipeline, the result awaits it.

        Raises:
            StaleNode: the epoch has ended. The transaction is aborted.
            StorageUnavailable: as for `check_locally`.
        """
        self.check_locally()
        rows = connection.execute("SELECT hold_epoch(?, ?)", self.parameters)

        def checked() -> None:
            rows.fetchone()

        return checked

    def hold(self, connection: psycopg.Connection[Any]) -> None:
        """Execute the check in the transaction that is open on a connection of psycopg.

        Raises:
            StaleNode: the epoch has ended. The transaction is aborted.
            StorageUnavailable: as for `check_locally`.
        """
        self.check_locally()
        try:
            connection.execute("SELECT hold_epoch(%s, %s)", self.parameters)
        except Exception as error:
            refused = refusal(error)
            if refused is None:
                raise
            raise refused from error


def refusal(error: BaseException) -> StaleNode | NotHere | None:
    """Return our error for one of the database's, if `hold_epoch` or `check_home` raised it."""
    state = getattr(error, "sqlstate", None)
    if state == EPOCH_ENDED:
        return StaleNode(_primary(error), hint="start the node again")
    if state == ELSEWHERE:
        return NotHere(_primary(error))
    return None


def _primary(error: BaseException) -> str:
    diagnosis = getattr(error, "diag", None)
    return getattr(diagnosis, "message_primary", None) or str(error)
