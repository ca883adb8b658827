"""Tree, limits of all that is started in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import anyio

from oubliette.api._generated.spawner import Spawner
from oubliette.api.owned_context import finish
from oubliette.api.spawner import end_quietly, new_tree_id

if TYPE_CHECKING:
    from types import TracebackType

    from oubliette.api.context import ClientContext
    from oubliette.api.session import Session


class Tree(Spawner):
    """Sessions whose agents, cost and time count together, their children included.

    Made by `Project.tree`. At the end of its block the sessions that were started inside are ended.

    Use as an async context manager.

    Blocking:
        Use as a context manager.
    """

    def __init__(self, shared: ClientContext, project_id: str, limits: dict[str, Any]) -> None:
        super().__init__(shared, project_id)
        self.id: str = new_tree_id()
        """Id of the tree."""
        self._limits = limits
        self._sessions: list[Session] = []

    async def __aenter__(self) -> Self:
        """Begin the block."""
        self._shared.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the sessions that were started inside."""
        await finish(asyncio.create_task(self._end()))

    async def _end(self) -> None:
        async with anyio.create_task_group() as ends:
            for session in self._sessions:
                ends.start_soon(end_quietly, self._shared, session.id)

    def _fixed(self) -> dict[str, Any]:
        return {"tree": {"id": self.id, "limits": self._limits}}

    def _was_spawned(self, session: Session) -> None:
        self._sessions.append(session)


class TreeMaker(Spawner):
    """Base of `Project`: it makes trees."""

    def _tree(self, options: dict[str, Any]) -> Tree:
        """Return a block whose sessions count together; limits only tighten those of the project.

        Args:
            options: Of the tree.
        """
        limits = {name: value for name, value in options.items() if value is not None}
        return Tree(self._shared, self._project_id, limits)
