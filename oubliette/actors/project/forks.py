"""Workspaces that are copies of others: of a snapshot for a fork, or as they are for a branch.

One is made where no agent sees it and then moved to its place. Until its session is stored, its
record is that of a deleted workspace: if the server is killed meanwhile, the next one removes it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from oubliette import ids
from oubliette.actors.agent_process.forked_conversation import MODE, read_conversation
from oubliette.actors.agent_process.session_files import bring_session_files
from oubliette.actors.messages import SessionFork
from oubliette.actors.snapshot_requests import SNAPSHOTS, CopySnapshot, TakeCheckpoint
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, NotFound, OublietteError, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.records import Workspace
from oubliette.runtime.agents.base import forks_conversations, session_files
from oubliette.runtime.files import new_workspaces
from oubliette.runtime.files.home_copies import copy_files
from oubliette.runtime.long_work import in_own_thread
from oubliette.runtime.repositories.workspace_clone import branch_of
from oubliette.runtime.snapshots.snapshot_records import SnapshotCopy, SnapshotLabel
from oubliette.runtime.store.operations import PutWorkspace

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.records import Project, Session
    from oubliette.runtime.agents.base import ForksConversations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import SpawnSession
    from oubliette.kit import Actor, Ref
    from oubliette.records import Project

    MakeClone = Callable[[str, str], Awaitable[Path]]
    """Clones the repository for a workspace that is to be a copy of another one, whose id comes
    first, and returns the folder."""

log = structlog.get_logger(__name__)

MILLISECOND: Final = 1000
COPY_TIMES: Final = 10
"""Multiple of `snapshots.seconds` for a copy: what was begun for the other workspace ends first."""


class ForkedWorkspaces:
    """Part of a ProjectActor that makes workspaces as copies of others; same lifetime."""

    def __init__(
        self, actor: Actor, context: ActorContext, project: Project, clone: MakeClone
    ) -> None:
        self._actor = actor
        self._context = context
        self._project = project
        self._clone = clone

    async def make(self, spawn: SpawnSession) -> SpawnSession:
        """Make the workspace for a request; return the request with what could not be copied.

        Raises:
            OublietteError: it cannot be made; nothing is left but the record of a deleted
                workspace.
        """
        assert spawn.workspace_id is not None, "it has its id already"
        if spawn.fork is not None:
            fork = await with_home(
                self._context,
                self._project,
                spawn.fork,
                agent=spawn.agent,
                workspace_id=spawn.workspace_id,
                snapshots=self._actor.system.lookup(SNAPSHOTS),
            )
            try:
                return replace(spawn, fork=await self._make(spawn.workspace_id, fork))
            except BaseException:
                await self.discard_home(fork)
                raise
        await self._make(spawn.workspace_id, await self._as_it_is(spawn))
        return spawn

    async def discard_home(self, fork: SessionFork) -> None:
        """Remove the HOME of a fork that was refused."""
        if fork.new_session_id is None:
            return
        remove = self._context.folders.remove_session
        try:
            await asyncio.to_thread(remove, self._project.id, fork.new_session_id)
        except (OublietteError, OSError) as error:
            log.warning("home not removed", session_id=fork.new_session_id, reason=str(error))

    async def _as_it_is(self, spawn: SpawnSession) -> SessionFork:
        """Take a snapshot of the workspace that is to be copied."""
        source, parent = spawn.branch_from, spawn.parent_session_id
        found = None if source is None else await self._context.reader.workspace(source)
        if found is None or found.deleted_at is not None or found.project_id != self._project.id:
            raise NotFound(f"workspace_id: there is no workspace {source} in this project")
        session = None if parent is None else await self._context.reader.session(parent)
        now = self._actor.clock.time()
        label = SnapshotLabel(
            session_id=session.id if session else "workspace",
            turn=session.turn_count if session else 0,
            moment="branch",
            tag=str(int(now * MILLISECOND)),
            when=now,
        )
        take = TakeCheckpoint(project_id=self._project.id, workspace_id=found.id, label=label)
        taken = await self._snapshots().ask(take, timeout=self._seconds)
        name = None if taken.ref is None else label.name.partition("/")[2]
        return SessionFork(
            session_id=label.session_id, workspace_id=found.id, snapshot=name, turn=label.turn
        )

    async def _make(self, workspace_id: str, fork: SessionFork) -> SessionFork:
        project, folders = self._project, self._context.folders
        made = await self._folder(fork.workspace_id, workspace_id)
        try:
            await asyncio.to_thread(new_workspaces.give, made, project)
            if fork.snapshot is not None:
                fork = await self._filled(workspace_id, fork, fork.snapshot, made)
            failpoint("fork.filled")
            now = self._actor.clock.time()
            created = await self._context.reader.next_workspace_time(project.id, now)
            record = Workspace(
                id=workspace_id, project_id=project.id, created_at=created, deleted_at=now
            )
            await self._context.store.ask(Transact(ops=(PutWorkspace(record),)))
            await in_own_thread(folders.place_workspace, project, workspace_id, made)
            failpoint("fork.placed")
        finally:
            await asyncio.to_thread(new_workspaces.discard, made)
        await asyncio.to_thread(folders.create_workspace, project, workspace_id)
        return fork

    async def _folder(self, source: str, workspace_id: str) -> Path:
        if self._project.repository is not None:
            return await self._clone(source, workspace_id)
        repositories = self._context.folders.repositories
        return await asyncio.to_thread(new_workspaces.make_blank, repositories, self._project)

    async def _filled(
        self, workspace_id: str, fork: SessionFork, snapshot: str, made: Path
    ) -> SessionFork:
        """Write the files of the snapshot over what is there."""
        project = self._project
        copy = SnapshotCopy(folder=str(made))
        if fork.large_files:
            copy = replace(
                copy,
                large_from=str(self._context.folders.workspace(project.id, fork.workspace_id)),
                keep_free=self._context.config.projects.keep_free_bytes,
            )
        if project.repository is not None:
            default = fork.workspace_id == project.default_workspace_id
            copy = replace(
                copy,
                old_branch=branch_of(fork.workspace_id, default=default),
                new_branch=branch_of(workspace_id, default=False),
            )
        message = CopySnapshot(
            project_id=project.id,
            workspace_id=fork.workspace_id,
            session_id=fork.session_id,
            name=snapshot,
            copy=copy,
        )
        done = await self._snapshots().ask(message, timeout=self._seconds)
        return replace(fork, missing_count=done.missing_count, missing=done.missing)

    def _snapshots(self) -> Ref:
        found = self._actor.system.lookup(SNAPSHOTS)
        if found is None:
            raise Conflict(
                "no snapshots are taken here, and without one no workspace is copied",
                hint='set mode = "on" in [snapshots] of the configuration, and install git',
            )
        return found

    @property
    def _seconds(self) -> float:
        return self._context.config.snapshots.seconds * COPY_TIMES


async def with_home(
    context: ActorContext,
    project: Project,
    fork: SessionFork,
    *,
    agent: str | None,
    workspace_id: str,
    snapshots: Ref | None,
) -> SessionFork:
    """Make the HOME of a fork; return the fork with what is in it.

    Args:
        context: Of the server.
        project: Project of both sessions.
        fork: Origin of the session.
        agent: Agent of the session, if it is not that of its origin.
        workspace_id: Workspace of the fork.
        snapshots: Actor that has the files of sessions of other nodes.
    """
    new = ids.new_id(ids.SESSION)
    fork = replace(fork, new_session_id=new)
    other = await context.reader.session(fork.session_id)
    if other is None or agent not in {None, other.agent} or other.agent not in context.agents:
        return fork
    await bring_session_files(context, snapshots, other)
    runtime = context.agent(other.agent)
    own = forks_conversations(runtime)
    try:
        if own is not None:
            await asyncio.to_thread(_begun, context, project, fork, own)
            return replace(fork, native=True)
        paths = session_files(runtime)
        if not paths or other.agent_session_id is None or not await _forkable(context, other, fork):
            return fork
        home = context.folders.session_home(project.id, other.id)
        await asyncio.to_thread(context.folders.create_session_home, project, new)
        copied = await asyncio.to_thread(
            copy_files,
            home,
            context.folders.session_home(project.id, new),
            paths,
            uid=project.uid,
            renamed={other.workspace_id: workspace_id},
        )
    except (RuntimeFailure, FileNotFoundError) as error:
        log.warning("a fork gets a record only", session_id=other.id, reason=str(error))
        return fork
    if not copied:
        return fork
    return replace(fork, native=True, agent_session_id=other.agent_session_id)


async def _forkable(context: ActorContext, other: Session, fork: SessionFork) -> bool:
    """Whether its agent can begin with the conversation up to this turn."""
    if other.agent_forks == "end":
        turns = await context.reader.turns(other.id)
        return all(each.number <= fork.turn for each in turns)
    return other.agent_forks == "turn"


def _begun(
    context: ActorContext, project: Project, fork: SessionFork, agent: ForksConversations
) -> None:
    """Write what an agent of ours knew after the turn."""
    assert fork.new_session_id is not None
    home = context.folders.session_home(project.id, fork.session_id)
    files = agent.forked_files(read_conversation(home, agent.conversation_file), fork.turn)
    given = {name: (content, MODE) for name, content in files.items()}
    context.folders.create_session_home(project, fork.new_session_id, given)
