"""Work of a ProjectActor on branches of its repository: merges, pushes, and agents' commits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oubliette.actors.container.messages import FetchCommits
from oubliette.actors.merge_requests import AgentCommitsFetched
from oubliette.actors.project.cloning import place
from oubliette.contract.changes import CommitInfo
from oubliette.errors import Forbidden
from oubliette.runtime.repositories.base_commits import base_of
from oubliette.runtime.repositories.branch_push import BranchPush
from oubliette.runtime.repositories.kept_objects import KeptObjects
from oubliette.runtime.repositories.merging.agent_commits import LISTED, commits_in
from oubliette.runtime.repositories.merging.branch_merge import BranchMerge
from oubliette.runtime.repositories.workspace_clone import WorkspaceClone, branch_of

if TYPE_CHECKING:
    from oubliette.actors.merge_requests import (
        FetchAgentCommits,
        FindKept,
        MergeSession,
        PushBranch,
    )
    from oubliette.actors.project.repository_work import RepositoryWork
    from oubliette.kit import Deferred, Ref
    from oubliette.runtime.repositories.branch_push import PushOutcome
    from oubliette.runtime.repositories.merging.agent_commits import AgentCommit
    from oubliette.runtime.repositories.merging.merge_records import MergeOutcome, MergeRequest
    from oubliette.runtime.repositories.project_repository import BareRepository

COMMITS_SECONDS: Final = 300.0
"""Time for the fetch of an agent's commits."""
GRACE_SECONDS: Final = 60.0
MAX_LISTED: Final = 500
"""Commits of an agent in an answer."""
MAX_TEXT: Final = 200


class BranchWork:
    """Part of a ProjectActor that works on branches, one thing at a time."""

    def __init__(self, work: RepositoryWork) -> None:
        self._work = work

    def merge(self, message: MergeSession, answer: Deferred) -> None:
        """Merge what a session has changed; `RepositoryAnswered` comes to the actor."""
        self._work.begin(self._merged(message.request), answer)

    async def _merged(self, request: MergeRequest) -> MergeOutcome:
        async with self._work.turn:
            bare = await self._work.ensure_cloned()
            await self._work.clear()
            outcome = await self._merger(bare, request.workspace_id).merge(request)
            if outcome.resolve_from is not None and request.resolve_in is not None:
                clone = WorkspaceClone(
                    bare,
                    self._work.repositories.git(),
                    branch=branch_of(request.resolve_in, default=False),
                    start=outcome.resolve_from,
                    origin=self._work.record.url,
                    dirty=outcome.resolve_commit,
                )
                await place(
                    self._work.repositories,
                    self._work.context,
                    self._work.project,
                    request.resolve_in,
                    clone=clone,
                )
            return outcome

    def _merger(self, bare: BareRepository, workspace_id: str) -> BranchMerge:
        snapshots = self._work.context.folders.snapshots_of(self._work.project.id, workspace_id)
        git, clock = self._work.repositories.git(), self._work.actor.clock
        return BranchMerge(bare.folder, snapshots, git, clock.time)

    def push(self, message: PushBranch, answer: Deferred) -> None:
        """Push a branch; `RepositoryAnswered` comes to the actor."""
        self._work.begin(self._pushed(message), answer)

    async def _pushed(self, message: PushBranch) -> PushOutcome:
        report = self._work.reporter(message.progress_to)
        async with self._work.turn:
            # The consent may have been given or withdrawn since this actor began.
            project = await self._work.context.reader.project(self._work.project.id)
            record = None if project is None else project.repository
            if not (record or self._work.record).push:
                raise Forbidden(
                    f"project {self._work.project.id} does not consent to pushes",
                    hint="project_update with allow_push=true gives the consent",
                )
            bare = await self._work.ensure_cloned(report)
            source = await self._work.repositories.source(self._work.record)
            git, seconds = (
                self._work.repositories.git(),
                self._work.repositories.settings.clone_seconds,
            )
            pusher = BranchPush(bare.folder, git, source, seconds)
            return await pusher.push(message.branch, message.to, report)

    def find_kept(self, message: FindKept, answer: Deferred) -> None:
        """Find what the source has; `RepositoryAnswered` comes to the actor."""
        self._work.begin(self._kept(message), answer)

    async def _kept(self, message: FindKept) -> tuple[str, ...]:
        async with self._work.turn:
            record = self._work.record
            bare = self._work.repositories.of(self._work.project.id, record)
            if not await asyncio.to_thread(lambda: bare.exists):
                return ()
            kept = KeptObjects(bare.folder, self._work.repositories.git())
            return tuple(
                [
                    workspace
                    for workspace, state in message.workspaces.items()
                    if await kept.has(state.tree, state.named)
                ]
            )

    def fetch_commits(self, message: FetchAgentCommits, container: Ref, answer: Deferred) -> None:
        """Fetch what an agent has committed; `RepositoryAnswered` comes to the actor."""
        self._work.begin(self._commits_fetched(message, container), answer)

    async def _commits_fetched(
        self, message: FetchAgentCommits, container: Ref
    ) -> AgentCommitsFetched:
        async with self._work.turn:
            bare = await self._work.ensure_cloned()
            await self._work.clear()
            git, workspace = self._work.repositories.git(), message.workspace_id
            base = await base_of(git, bare.folder, workspace, message.first_tree)
            head = await container.ask(
                FetchCommits(
                    workspace_id=workspace,
                    workspace=message.workspace,
                    repository=str(bare.folder),
                    base=base,
                    git=git.path,
                    most=self._work.repositories.settings.max_bytes,
                    seconds=COMMITS_SECONDS,
                ),
                timeout=COMMITS_SECONDS + GRACE_SECONDS,
            )
            output = await git.run(
                bare.folder, *LISTED, f"--max-count={MAX_LISTED}", head, "--not", base,
                seconds=COMMITS_SECONDS,
            )  # fmt: skip
        return AgentCommitsFetched(
            base=base, head=head, commits=tuple(_listed(each) for each in commits_in(output))
        )


def _listed(found: AgentCommit) -> CommitInfo:
    return CommitInfo(
        commit=found.commit,
        author=found.author[:MAX_TEXT],
        email=found.email[:MAX_TEXT],
        written_at=found.written,
        subject=found.message.partition("\n")[0][:MAX_TEXT],
    )
