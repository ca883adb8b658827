"""The ways in which commits come to a branch: as a merge, as one commit, or on top of it.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.runtime.repositories.merging.session_commits import trailers
from oubliette.runtime.repositories.merging.tree_merge import merge_commits, merge_trees
from oubliette.runtime.snapshots.git_program import git_failure

if TYPE_CHECKING:
    from oubliette.runtime.repositories.merging.merge_records import MergeRequest
    from oubliette.runtime.repositories.merging.merge_room import MergeRoom
    from oubliette.runtime.repositories.merging.session_commits import SessionCommit
    from oubliette.runtime.repositories.merging.tree_merge import MergedTree


class Conflicted(Exception):
    """Paths that cannot be merged, and the side that they do not fit; caught within a merge."""

    def __init__(
        self, merged: MergedTree, what: str, tip: str | None = None, snapshot: str = ""
    ) -> None:
        super().__init__(what)
        self.merged = merged
        self.what = what
        self.tip = tip
        """Commit of the branch, where an agent could resolve them."""
        self.snapshot = snapshot
        """Snapshot that was to be merged."""


class Merger:
    """The three ways in which commits come to a branch.

    Args:
        room: Has all commits, and gets new ones.
        request: Names the way.
        base: Commit that the workspace was made of.
        now: Second since 1970.
    """

    def __init__(self, room: MergeRoom, request: MergeRequest, base: str, now: float) -> None:
        self._room = room
        self._request = request
        self._base = base
        self._now = now

    async def merged(self, tip: str, commits: list[SessionCommit], had: int) -> str:
        """The commit of the branch with all of `commits`, of which it has the first.

        Raises:
            Conflicted: they cannot be merged.
        """
        if self._request.strategy == "rebase":
            return await self._rebased(tip, commits, had)
        last = commits[-1]
        whole = self._request.strategy == "merge"
        if (
            whole
            and self._request.message is None
            and await is_ancestor(self._room, tip, last.commit)
        ):
            return last.commit
        names = {tip: self._request.into, last.commit: f"session {self._request.session_id}"}
        start = commits[had - 1].commit if had else self._base
        if whole and not (had and await is_ancestor(self._room, self._base, tip)):
            found = await merge_commits(self._room, tip, last.commit, names)
        else:
            found = await merge_trees(self._room, start, tip, last.commit, names)
        if found.conflicts:
            raise Conflicted(found, "the session", tip, last.state.commit)
        if found.tree == await self._room.line("rev-parse", f"{tip}^{{tree}}"):
            return tip
        parents = (tip, last.commit) if whole else (tip,)
        return await self._room.commit(
            found.tree, parents, self._message(last), written=self._now, made=self._now
        )

    async def _rebased(self, tip: str, commits: list[SessionCommit], had: int) -> str:
        for each in commits[had:]:
            if tip == each.parent:
                tip = each.commit
                continue
            names = {tip: self._request.into, each.commit: each.turn}
            found = await merge_trees(self._room, each.parent, tip, each.commit, names)
            if found.conflicts:
                raise Conflicted(found, each.turn)
            if found.tree == await self._room.line("rev-parse", f"{tip}^{{tree}}"):
                continue
            tip = await self._room.commit(
                found.tree,
                (tip,),
                each.message,
                written=each.state.committed_at,
                made=self._now,
                author=each.author,
            )
        return tip

    def _message(self, last: SessionCommit) -> str:
        request = self._request
        text = (request.message or "").strip() or (
            f"Merge session {request.session_id} into {request.into}"
            if request.strategy == "merge"
            else f"Changes of session {request.session_id}"
        )
        name = request.states.name or str(last.state.turn)
        return f"{text}\n\n{trailers(request.session_id, name, last.snapshots)}"


async def is_ancestor(room: MergeRoom, older: str, newer: str) -> bool:
    """Return whether a commit has an older one among its ancestors, or is it."""
    done = await room.try_run("merge-base", "--is-ancestor", older, newer)
    if done.code not in {0, 1}:
        raise git_failure("merge-base", done)
    return done.code == 0
