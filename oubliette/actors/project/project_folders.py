"""Folders of a project: made when its actor starts, and what cannot be used of them.

Agents own what is in them. What an agent has put in the place of a folder, and a disk that is full,
is a state of the project or of one workspace: the rest of it works.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from oubliette.actors.store.outages import once_back
from oubliette.errors import OublietteError, RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.context import ActorContext
    from oubliette.records import Project

log = structlog.get_logger(__name__)


class ProjectFolders:
    """Part of a ProjectActor that makes the folders of its project; it has the same lifetime."""

    def __init__(self, context: ActorContext, project: Project) -> None:
        self._context = context
        self._project = project
        self._problems: dict[str | None, str] = {}
        """Reasons by workspace, None for the project itself: what could not be made last time."""

    async def make(self) -> None:
        """Make what is missing, such as what a crash left out; never fails because of a folder."""
        folders, project, reader = self._context.folders, self._project, self._context.reader
        workspaces = await once_back(lambda: reader.workspaces(project.id))
        problems: dict[str | None, str] = {}

        def attempt(place: str | None, make: Callable[[], None]) -> None:
            try:
                make()
            except (OublietteError, OSError) as error:
                problems[place] = error.message if isinstance(error, OublietteError) else str(error)

        def make() -> None:
            attempt(None, lambda: folders.create_project(project))
            for each in workspaces:
                attempt(each.id, lambda each=each: folders.create_workspace(project, each.id))

        await asyncio.to_thread(make)
        for place, reason in problems.items():
            if self._problems.get(place) != reason:
                log.warning(
                    "folders cannot be used",
                    project_id=project.id,
                    workspace_id=place,
                    reason=reason,
                )
        self._problems = problems

    async def problem(self, workspace_id: str | None) -> str | None:
        """Return the reason why a workspace cannot be used, or for None any; first try again."""
        if self._problems:
            await self.make()
        if workspace_id is None:
            return next(iter(self._problems.values()), None)
        return self._problems.get(None) or self._problems.get(workspace_id)

    async def check(self, workspace_id: str) -> None:
        """Refuse what needs a workspace; one that was removed meanwhile is made again, empty.

        Raises:
            RuntimeFailure: it cannot be used.
        """
        is_workspace = self._context.folders.is_workspace
        if not await asyncio.to_thread(is_workspace, self._project.id, workspace_id):
            await self.make()
        reason = await self.problem(workspace_id)
        if reason is not None:
            raise RuntimeFailure(
                f"the workspace cannot be used: {reason}",
                hint="once that is mended, try again; the workspace and the project can be deleted",
            )
