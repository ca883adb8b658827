"""Tree, limits of all that is started inside a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from oubliette.sync.spawner import Spawner

if TYPE_CHECKING:
    from types import TracebackType

    from oubliette.api import tree as twins
    from oubliette.sync.portal_thread import PortalThread


class Tree(Spawner):
    """Sessions whose agents, cost and time count together, their children included.

    Use as a context manager: at its end the sessions that were started inside are ended. Made by
    `Project.tree`.
    """

    def __init__(self, thread: PortalThread, twin: twins.Tree) -> None:
        super().__init__(thread, twin)
        self._tree = twin
        self.id = twin.id
        """Id of the tree."""

    def __enter__(self) -> Self:
        """Begin the block."""
        self._thread.call(self._tree.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the sessions that were started inside."""
        self._thread.call(lambda: self._tree.__aexit__(kind, error, traceback))
