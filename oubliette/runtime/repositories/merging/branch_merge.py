"""BranchMerge, which merges what a session has changed into a branch of the project's repository.

No checkout is touched, and the branch has a new commit only if all went well: what is made on
the way is in a place of its own, and the branch is set last, from the commit that it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from oubliette.errors import Conflict, InvalidParameter, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.runtime.repositories.base_commits import base_of
from oubliette.runtime.repositories.merging.agent_commits import AgentCommits
from oubliette.runtime.repositories.merging.conflict_resolution import (
    check_resolved,
    keep_conflicts,
    unmerged_snapshot,
)
from oubliette.runtime.repositories.merging.merge_records import MergeOutcome
from oubliette.runtime.repositories.merging.merge_room import MergeRoom
from oubliette.runtime.repositories.merging.merge_strategies import (
    Conflicted,
    Merger,
    is_ancestor,
)
from oubliette.runtime.repositories.merging.session_commits import SessionCommits, trailers
from oubliette.runtime.repositories.merging.state_trees import StateTrees
from oubliette.runtime.repositories.merging.tree_merge import merge_commits
from oubliette.runtime.repositories.project_repository import REMOTE, SECONDS
from oubliette.runtime.snapshots.history import change_lines, size_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oubliette.runtime.repositories.merging.merge_records import MergeRequest
    from oubliette.runtime.snapshots.git_program import GitProgram

HEADS: Final = "refs/heads"
MAX_SHOWN: Final = 20
"""Files that are left out, in an answer."""
_NOBODY: Final = "0" * 40
"""Value of a ref that does not exist."""


class BranchMoved(Conflict):
    """A branch got another commit while something was merged into it."""

    code = "branch_moved"


class BranchMerge:
    """One merge. Its owner does nothing else with the repository meanwhile.

    Args:
        repository: Folder of the project's repository.
        snapshots: Folder of the repository with the workspace's snapshots.
        git: The program.
        now: Returns the second since 1970.
    """

    def __init__(
        self, repository: Path, snapshots: Path, git: GitProgram, now: Callable[[], float]
    ) -> None:
        self._repository = repository
        self._snapshots = snapshots
        self._git = git
        self._now = now

    async def merge(self, request: MergeRequest) -> MergeOutcome:
        """Merge, or return the reason for which that is not possible.

        Raises:
            Conflict: the workspace's base is not known.
            BranchMoved: the branch was changed meanwhile, twice.
            InvalidParameter: a branch of this name cannot be there.
            RuntimeFailure: git failed, or refuses an object; the branch is as it was.
            DeadlineExceeded: it takes too long; the branch is as it was.
        """
        try:
            return await self._once(request)
        except BranchMoved:
            return await self._once(request)

    async def _once(self, request: MergeRequest) -> MergeOutcome:
        base = await base_of(
            self._git, self._repository, request.workspace_id, request.states.states[0].tree
        )
        before = await self._commit_of(f"{HEADS}/{request.into}")
        outcome = MergeOutcome(
            into=request.into, merged=False, base=base, before=before, created=before is None
        )
        async with MergeRoom(self._repository, self._snapshots, self._git) as room:
            try:
                outcome = await self._computed(room, request, outcome)
            except Conflicted as found:
                outcome = replace(
                    outcome,
                    created=False,
                    conflicts=found.merged.conflicts,
                    conflict_with=found.what,
                )
                return await self._to_resolve(room, request, outcome, found)
            if outcome.commit is None or request.dry_run:
                return outcome
            failpoint("merge.computed")
            await room.keep(outcome.commit)
        failpoint("merge.stored")
        await self._set(request.into, outcome.commit, before)
        failpoint("merge.done")
        return outcome

    async def _to_resolve(
        self, room: MergeRoom, request: MergeRequest, outcome: MergeOutcome, found: Conflicted
    ) -> MergeOutcome:
        """Keep the conflicts for an agent, where that is asked for and possible."""
        if request.resolve_in is None or found.tip is None or request.dry_run:
            return outcome
        now, session_id = self._now(), request.session_id
        name = request.states.name or ""
        message = f"Conflicts of {session_id}\n\n{trailers(session_id, name, found.snapshot)}"
        commit = await room.commit(found.merged.tree, (found.tip,), message, written=now, made=now)
        await keep_conflicts(
            self._git, self._repository, room, request.resolve_in, commit=commit, tip=found.tip
        )
        return replace(outcome, resolve_from=found.tip, resolve_commit=commit)

    async def _computed(
        self, room: MergeRoom, request: MergeRequest, outcome: MergeOutcome
    ) -> MergeOutcome:
        """The outcome, for which everything is in the room.

        Raises:
            Conflicted: there are conflicts.
        """
        base, before = outcome.base, outcome.before
        tip = await self._with_origin(room, request, before) or base
        conflicted = await unmerged_snapshot(self._git, self._repository, request.workspace_id)
        commits: SessionCommits | AgentCommits
        if request.agent_head is None:
            commits = SessionCommits(room, StateTrees(room, base), base, conflicted)
        else:
            commits = AgentCommits(room, base, request.agent_head)
        await commits.make(request, tip)
        if conflicted is not None and commits.last is not None:
            await check_resolved(room, commits.last.tree)
        if commits.last is not None:
            outcome = _with_left_out(outcome, commits.last.ignored, commits.last.left_out)
        new, had = tip, await commits.had(tip)
        if commits.commits[had:]:
            merger = Merger(room, request, base, self._now())
            new = await merger.merged(tip, commits.commits, had)
        if new == before or (before is None and new == tip):
            return replace(outcome, up_to_date=True, created=False)
        counts = size_of(await change_lines(room.run, SECONDS, before or base, new))
        listed = await room.line("rev-list", "--count", new, "--not", before or base)
        return replace(
            outcome,
            merged=True,
            commit=new,
            commits=int(listed),
            fast_forward=bool(commits.commits) and new == commits.commits[-1].commit,
            files=counts[0],
            insertions=counts[1],
            deletions=counts[2],
        )

    async def _with_origin(
        self, room: MergeRoom, request: MergeRequest, before: str | None
    ) -> str | None:
        """Return the branch with what was fetched of it; None: it is neither here nor there.

        Raises:
            Conflicted: it has changed on both sides, and cannot be merged.
        """
        theirs = await self._commit_of(f"{REMOTE}/{request.into}")
        if theirs is None or before is None or before == theirs:
            return before or theirs
        if await is_ancestor(room, theirs, before):
            return before
        if await is_ancestor(room, before, theirs):
            return theirs
        name = f"origin/{request.into}"
        found = await merge_commits(room, before, theirs, {before: request.into, theirs: name})
        if found.conflicts:
            raise Conflicted(found, name)
        now = self._now()
        message = f"Merge {name} into {request.into}\n"
        return await room.commit(found.tree, (before, theirs), message, written=now, made=now)

    async def _commit_of(self, ref: str) -> str | None:
        return await self._git.commit_of(self._repository, ref, seconds=SECONDS)

    async def _set(self, into: str, commit: str, before: str | None) -> None:
        ref = f"{HEADS}/{into}"
        try:
            await self._git.run(
                self._repository, "update-ref", ref, commit, before or _NOBODY, seconds=SECONDS
            )
        except RuntimeFailure as error:
            if await self._commit_of(ref) != before:
                raise BranchMoved(
                    f"the branch {into} got another commit meanwhile", hint="merge again"
                ) from error
            if "exists; cannot create" in error.message:
                raise InvalidParameter(
                    f"into: there is another branch whose name and {into} exclude each other",
                    field="into",
                    hint="a/b cannot be there beside a; choose another name",
                ) from error
            raise


def _with_left_out(
    outcome: MergeOutcome, ignored: frozenset[bytes], left_out: dict[bytes, str]
) -> MergeOutcome:
    shown = list(left_out.items())[:MAX_SHOWN]
    return replace(
        outcome,
        ignored=tuple(_shown(path) for path in sorted(ignored)[:MAX_SHOWN]),
        ignored_count=len(ignored),
        left_out={_shown(path): why for path, why in shown},
        left_out_count=len(left_out),
    )


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
