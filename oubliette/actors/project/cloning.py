"""Clones of the repositories of new projects, beside the mailbox of the ProjectsActor.

A project exists while its repository is cloned, so that it shows how far that is; nothing begins in
it before. If the clone fails, or its server is killed meanwhile, the project is removed again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from oubliette.actors.messages import CloneProgressed
from oubliette.errors import Conflict, OublietteError, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.kit import LocalMessage
from oubliette.runtime.files import new_workspaces
from oubliette.runtime.long_work import FairSlots, in_own_thread
from oubliette.runtime.repositories.access import Repositories
from oubliette.runtime.repositories.lfs_content import check_git_lfs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import CreateProject
    from oubliette.kit import Actor, Deferred
    from oubliette.records import Project, ProjectRepository
    from oubliette.runtime.repositories.workspace_clone import WorkspaceClone

log = structlog.get_logger(__name__)

AT_ONCE: Final = 4
"""Clones at a time; others wait."""
OF_PRINCIPAL: Final = 2
"""Those of one principal: another host may take all the time that a clone has."""
END_SECONDS: Final = 15.0
"""Time for git to end where its clone is not wanted any more."""


class CloneSaid(LocalMessage):
    """To the ProjectsActor itself: a line about the progress of a clone."""

    project_id: str
    text: str


class CloneEnded(LocalMessage):
    """To the ProjectsActor itself: a clone has ended, and the folders of its project are made."""

    project_id: str
    repository: ProjectRepository | None = None
    error: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class RunningClone:
    """A clone that is under way."""

    project: Project
    message: CreateProject
    answers: list[Deferred]
    """Requests that wait for it."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where it is not wanted any more."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    progress: str = "waiting for other clones"


async def _stopped(running: RunningClone | None) -> None:
    if running is not None:
        async with asyncio.timeout(END_SECONDS):
            await running.ended.wait()


class RepositoryClones:
    """Part of the ProjectsActor that knows what is being cloned; it has its lifetime."""

    def __init__(self, actor: Actor, context: ActorContext) -> None:
        self._actor = actor
        self._context = context
        self._slots = FairSlots(AT_ONCE, OF_PRINCIPAL)
        self._running: dict[str, RunningClone] = {}
        self.repositories = Repositories(context.folders.repositories, context.config.repositories)

    def begin(self, project: Project, message: CreateProject, answer: Deferred) -> None:
        """Clone the repository of a project; `CloneEnded` comes to the actor."""
        running = RunningClone(project=project, message=message, answers=[answer])
        self._running[project.id] = running
        self._actor.pipe_to_self(
            self._whole(running),
            lambda record: CloneEnded(project_id=project.id, repository=record),
            lambda error: CloneEnded(project_id=project.id, error=error),
        )

    def joined(self, message: CreateProject, defer: Callable[[], Deferred]) -> bool:
        """Have a repeated request wait for the clone of the first one; return whether it runs.

        Raises:
            Conflict: that request had other arguments.
        """
        key = message.idempotency
        if key is None:
            return False
        for running in self._running.values():
            first = running.message.idempotency
            if first is None or running.message.principal != message.principal:
                continue
            if (first.tool, first.key) != (key.tool, key.key):
                continue
            if first.digest != key.digest:
                raise Conflict(
                    "idempotency_key: it was used with other arguments", hint="choose a new key"
                )
            running.answers.append(defer())
            return True
        return False

    def progress(self, project_id: str) -> str | None:
        """Return the last line about a clone; None: none of this project is under way here."""
        running = self._running.get(project_id)
        return None if running is None else running.progress

    def said(self, message: CloneSaid) -> None:
        """Keep a line about a clone's progress, and pass it on to the actor that asked for it."""
        running = self._running.get(message.project_id)
        if running is None:
            return
        running.progress = message.text
        if running.message.progress_to is not None:
            receiver = self._actor.system.lookup(running.message.progress_to)
            if receiver is not None:
                receiver.tell(CloneProgressed(text=message.text))

    def ended(self, project_id: str) -> RunningClone | None:
        """Forget a clone; None: it was stopped."""
        return self._running.pop(project_id, None)

    def stop(self, project_id: str) -> Awaitable[None]:
        """End a clone whose project is deleted, and return what waits for git to have ended.

        Those who wait for the clone get an error.
        """
        running = self._running.pop(project_id, None)
        if running is not None:
            running.stop.set()
            for answer in running.answers:
                answer.set_error(Conflict("the project was deleted while it was cloned"))
        return _stopped(running)

    async def _whole(self, running: RunningClone) -> ProjectRepository:
        work = asyncio.create_task(self._cloned(running), name=f"clone {running.project.id}")
        stop = asyncio.create_task(running.stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Conflict("the project was deleted while it was cloned")
            return await work
        finally:
            stop.cancel()
            work.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
            running.ended.set()

    async def _cloned(self, running: RunningClone) -> ProjectRepository:
        project = running.project
        assert project.repository is not None, "it is a project with a repository"
        async with self._slots.of(running.message.principal):
            failpoint("clone.begun")
            if project.repository.fetch_lfs and project.repository.url is not None:
                check_git_lfs()  # before anything is transferred
            remote = await self.repositories.source(project.repository)
            bare = self.repositories.of(project.id, project.repository)
            record = await bare.clone(
                remote,
                seconds=self.repositories.settings.clone_seconds,
                report=lambda text: self._say(project.id, text),
            )
            failpoint("project.cloned")
        self._say(project.id, "making the first workspace")
        project = _with(project, record)
        folders, workspace_id = self._context.folders, project.default_workspace_id
        try:
            await asyncio.to_thread(folders.create_project, project)
            await place(
                self.repositories,
                self._context,
                project,
                workspace_id,
                report=lambda text: self._say(project.id, text),
            )
        except OSError as error:
            raise RuntimeFailure(f"the project's folder cannot be made: {error}") from error
        return record

    def _say(self, project_id: str, text: str) -> None:
        self._actor.ref.tell(CloneSaid(project_id=project_id, text=text))


async def place(
    repositories: Repositories,
    context: ActorContext,
    project: Project,
    workspace_id: str,
    branch: str | None = None,
    *,
    clone: WorkspaceClone | None = None,
    report: Callable[[str], object] | None = None,
) -> None:
    """Make a workspace of a project that was cloned, if there is none yet.

    Args:
        repositories: Has the project's.
        context: Knows the folders.
        project: The project.
        workspace_id: Id of the workspace.
        branch: Branch of the other repository at which it begins; None: the project's.
        clone: The workspace as it is to be made instead; None: at that branch.
        report: Gets lines about the progress.

    Raises:
        BranchNotFound: there is no such branch.
        RuntimeFailure: git or the file system refused; nothing is left.
    """
    folders = context.folders
    if not await asyncio.to_thread(folders.has_workspace, project.id, workspace_id):
        made = await made_clone(
            repositories, project, workspace_id, branch, clone=clone, report=report
        )
        try:
            failpoint("workspace.cloned")
            await in_own_thread(folders.place_workspace, project, workspace_id, made)
            failpoint("workspace.placed")
        finally:
            await asyncio.to_thread(new_workspaces.discard, made)
    await asyncio.to_thread(folders.create_workspace, project, workspace_id)


async def made_clone(
    repositories: Repositories,
    project: Project,
    workspace_id: str,
    branch: str | None = None,
    *,
    clone: WorkspaceClone | None = None,
    report: Callable[[str], object] | None = None,
) -> Path:
    """Clone the repository for a workspace; return the folder, which is still to be moved.

    Raises:
        BranchNotFound: there is no such branch.
        RuntimeFailure: git or the file system refused; nothing is left.
    """
    clone = clone or await repositories.new_workspace(project, workspace_id, branch)
    made = await clone.make()
    record, seconds = project.repository, repositories.settings.clone_seconds
    try:
        if record is not None and record.submodules:
            remote = await repositories.source(record, submodules=True)
            await clone.fetch_submodules(remote, seconds=seconds, report=report)
        if record is not None and record.fetch_lfs:
            content = await repositories.lfs_content(project.id, record)
            files = await content.fetch(clone.tree, seconds=seconds, report=report)
            failpoint("workspace.lfs_fetched")
            await content.place(made, files)
    except BaseException:
        await clone.discard()
        raise
    return made


def check_cloned(project: Project, progress: str | None) -> None:
    """Refuse to begin anything in a project whose repository is not here yet.

    Raises:
        Conflict: it is being cloned, or its clone was cut off.
    """
    if project.repository is None or project.repository.ready:
        return
    if progress is None:
        raise Conflict(
            f"the clone of project {project.id} was cut off",
            hint="delete it with project_delete, and create it again",
        )
    raise Conflict(
        f"the repository of project {project.id} is still being cloned ({progress})",
        hint="project_get shows how far it is",
    )


def as_ours(error: BaseException | None) -> OublietteError:
    """The error of a clone, as its asker gets it."""
    if isinstance(error, OublietteError):
        return error
    log.error("clone failed", exc_info=error)
    return RuntimeFailure("the clone failed", hint="the server's log has the details")


def _with(project: Project, record: ProjectRepository) -> Project:
    return replace(project, repository=record)
