"""Removal of the files of deleted projects, beside the mailbox of the ProjectsActor.

How long it takes is up to their agents, and others create and open projects meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from oubliette.actors.tree.messages import ProjectGone
from oubliette.errors import RuntimeFailure
from oubliette.kit import LocalMessage
from oubliette.runtime.long_work import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from oubliette.actors.context import ActorContext
    from oubliette.kit import Actor, Deferred

log = structlog.get_logger(__name__)


class ProjectClosed(LocalMessage):
    """To the ProjectsActor itself: nothing of a project runs any more, or it may not be deleted."""

    project_id: str
    error: BaseException | None = None


class FilesRemoved(LocalMessage):
    """To the ProjectsActor itself: the files of a project are removed, as far as possible."""

    project_id: str
    answers: Sequence[Deferred]
    refusal: BaseException | None
    """Error of those who wait, whether or not the removal succeeds."""
    error: BaseException | None = None


class ProjectRemovals:
    """Part of the ProjectsActor that deletes projects; it has its lifetime."""

    def __init__(self, actor: Actor, context: ActorContext) -> None:
        self._actor = actor
        self._context = context
        self._closing: dict[str, list[Deferred]] = {}
        """Project that is to be deleted → requests that wait for it."""

    def closing(self, project_id: str) -> bool:
        """Whether a project is being closed, to be deleted."""
        return project_id in self._closing

    def begin(self, project_id: str, answer: Deferred, closing: Awaitable[None]) -> None:
        """Wait until a project is closed; `ProjectClosed` comes to the actor."""
        self._closing[project_id] = [answer]
        self._actor.pipe_to_self(
            closing,
            lambda _: ProjectClosed(project_id=project_id),
            lambda error: ProjectClosed(project_id=project_id, error=error),
        )

    def join(self, project_id: str, answer: Deferred) -> None:
        """Have one more request wait for the deletion of a project that is being closed."""
        self._closing[project_id].append(answer)

    def refuse(self, project_id: str, error: BaseException) -> None:
        """Answer that a project is not deleted."""
        for answer in self._closing.pop(project_id):
            answer.set_error(error)

    def deleted(self, project_id: str) -> None:
        """Remove the files of a project that was closed, and answer then."""
        self._begin(
            self._remove_deleted(project_id), project_id, self._closing.pop(project_id), None
        )

    def clear_away(
        self, project_id: str, *answers: Deferred, refusal: BaseException | None = None
    ) -> None:
        """Remove the files of a project that is not here; those who wait are answered then."""
        self._begin(self._remove(project_id), project_id, answers, refusal)

    def _begin(
        self,
        work: Awaitable[None],
        project_id: str,
        answers: Sequence[Deferred],
        refusal: BaseException | None,
    ) -> None:
        def removed(error: BaseException | None) -> FilesRemoved:
            return FilesRemoved(
                project_id=project_id, answers=answers, refusal=refusal, error=error
            )

        self._actor.pipe_to_self(work, removed, removed)

    async def _remove(self, project_id: str) -> None:
        await in_own_thread(self._context.folders.remove_project, project_id)

    async def _remove_deleted(self, project_id: str) -> None:
        try:
            await self._remove(project_id)
        except RuntimeFailure as error:
            error.hint = f"project {project_id} is deleted; the next start removes what was left"
            raise
        if self._context.homes is not None:  # a tree of it may live on in other projects
            trees = self._actor.system.ref("trees")
            await trees.ask(ProjectGone(project_id=project_id))

    def removed(self, message: FilesRemoved) -> None:
        """Answer those who wait for it."""
        if message.error is not None:
            log.warning(
                "left for the next start",
                project_id=message.project_id,
                reason=str(message.error),
            )
        error = message.refusal or message.error
        for answer in message.answers:
            if error is None:
                answer.set(None)
            else:
                answer.set_error(error)
