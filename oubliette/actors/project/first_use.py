"""Files of workspaces that come from another node, at their first use on this one.

A turn has them brought with its snapshot. A command in a container waits for them here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from oubliette.actors.snapshot_requests import QUEUED, SNAPSHOTS, BringFiles
from oubliette.errors import NotFound, OublietteError
from oubliette.kit import LocalMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.actors.context import ActorContext
    from oubliette.kit import Actor, Deferred, Ref

log = structlog.get_logger(__name__)


class FilesBrought(LocalMessage):
    """To a ProjectActor: the files are there, or cannot be had now."""

    workspaces: tuple[str, ...]


class FirstUse:
    """Part of a ProjectActor that knows which workspaces were used here; it has its lifetime."""

    def __init__(self, actor: Actor, context: ActorContext, project_id: str) -> None:
        self._actor = actor
        self._context = context
        self._project_id = project_id
        self._brought: set[str] = set()
        """Workspaces of which all files are here."""
        self._waiting: list[tuple[frozenset[str], Deferred, str]] = []
        """Workspaces of a request, its answer, and the answer's value."""

    def answer(self, workspaces: Sequence[str], answer: Deferred, value: str) -> None:
        """Answer a request once the files of these workspaces are here."""
        snapshots = self._actor.system.lookup(SNAPSHOTS)
        wanted = frozenset(workspaces) - self._brought
        if snapshots is None or not self._context.config.cluster.snapshots or not wanted:
            answer.set(value)
            return
        under_way = frozenset[str]().union(*(each for each, _, _ in self._waiting))
        self._waiting.append((wanted, answer, value))
        new = tuple(sorted(wanted - under_way))
        if new:
            self._actor.pipe_to_self(
                self._bring(snapshots, new),
                lambda _: FilesBrought(workspaces=new),
                lambda _: FilesBrought(workspaces=new),
            )

    def brought(self, message: FilesBrought) -> None:
        """Answer the requests that have waited for these workspaces alone."""
        self._brought.update(message.workspaces)
        waiting, self._waiting = self._waiting, []
        for wanted, answer, value in waiting:
            if wanted <= self._brought:
                answer.set(value)
            else:
                self._waiting.append((wanted, answer, value))

    async def _bring(self, snapshots: Ref, workspaces: Sequence[str]) -> None:
        seconds = self._context.config.snapshots.seconds * QUEUED

        async def bring(workspace_id: str) -> None:
            message = BringFiles(project_id=self._project_id, workspace_id=workspace_id)
            try:
                await snapshots.ask(message, timeout=seconds)
            except NotFound:
                return  # it was deleted meanwhile
            except OublietteError as error:
                log.warning(
                    "files of another node may be missing",
                    workspace_id=workspace_id,
                    reason=str(error),
                )

        await asyncio.gather(*map(bring, workspaces))
