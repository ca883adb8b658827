"""ProjectViews, the repositories of projects that git's clients may fetch from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette import ids
from oubliette.actors.messages import ServeRepository
from oubliette.errors import NotFound, Unavailable
from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.tools.audit import note_call
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.repository.repositories import SLACK_SECONDS
from oubliette.tools.services import project_not_found

if TYPE_CHECKING:
    from oubliette.records import Project
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

NOTED: Final = "git-upload-pack"
"""Name under which requests are in the audit log, in the place of a tool's."""


class _AskedProject(msgspec.Struct, frozen=True):
    project_id: str | None


class ProjectViews:
    """The repositories of the projects, which their actors have."""

    def __init__(self, services: ToolServices) -> None:
        self._services = services

    @property
    def seconds(self) -> float:
        """Time for one answer: that of the clones which the server makes."""
        return self._services.config.repositories.clone_seconds

    async def find(self, context: CallContext, project: str) -> tuple[str, str | None]:
        """Return the id of a project, and the machine on which it lives; None: this one.

        Args:
            context: The caller.
            project: Id of the project, or its name, which no other one has.

        Raises:
            NotFound: there is no such project, or the key does not reach it.
            Unavailable: no machine can take it.
        """
        found = await self._find(context, project)
        nodes = self._services.nodes
        return found.id, None if nodes is None else await nodes.home(found.id, needed=True)

    async def folder(self, project_id: str) -> Path:
        """The folder of the repository of a project of this machine, as new as the answer.

        Raises:
            Unavailable: git is missing here.
            OublietteError: it cannot be served now.
        """
        if GitProgram.find() is None:
            raise Unavailable("git is not installed on the server's machine", hint="install it")
        ref = await self._services.project_ref(project_id)
        return Path(await ref.ask(ServeRepository(), timeout=self.seconds + SLACK_SECONDS))

    async def _find(self, context: CallContext, project: str) -> Project:
        if not ids.is_id(project, ids.PROJECT):
            named = await self._services.reader.project_named(project)
            if named is None:
                raise project_not_found(ids.shown(project))
            try:
                return await visible_project(self._services, context, named.id)
            except NotFound:  # without its id, which the caller has not given
                raise project_not_found(ids.shown(project)) from None
        return await visible_project(self._services, context, project)

    async def note(
        self, context: CallContext, project_id: str | None, outcome: str, seconds: float
    ) -> None:
        parts = (_AskedProject(project_id), None)
        await note_call(self._services, context, NOTED, outcome, seconds=seconds, parts=parts)
