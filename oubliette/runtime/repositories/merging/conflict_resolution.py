"""Conflicts that an agent resolves: a workspace of the branch, with the files that conflict.

The files, with git's markers in them, are a commit beside the branch, and come to the workspace as
uncommitted changes. That commit also has the snapshot that could not be merged: once its conflicts
are resolved, the branch has what that snapshot has.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.errors import Conflict
from oubliette.runtime.repositories.base_commits import note_base
from oubliette.runtime.repositories.project_repository import SECONDS
from oubliette.runtime.snapshots.git_program import git_failure

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.repositories.merging.merge_room import MergeRoom
    from oubliette.runtime.snapshots.git_program import GitProgram

CONFLICTS: Final = "refs/oubliette/conflicts"
SNAPSHOT: Final = "Oubliette-Snapshot"
_MARKER: Final = "^(<<<<<<<|>>>>>>>) [0-9a-f]{40}"
"""Lines that git has put around the versions of a conflict; it names them by their commits."""
_SHOWN: Final = 20


async def keep_conflicts(
    git: GitProgram, repository: Path, room: MergeRoom, workspace_id: str, *, commit: str, tip: str
) -> None:
    """Keep a commit with conflicts for a workspace that is to be made of a branch.

    Raises:
        RuntimeFailure: git failed, or refuses an object.
        DeadlineExceeded: it takes too long.
    """
    await room.keep(commit)
    ref = f"{CONFLICTS}/{workspace_id}"
    await git.run(repository, "update-ref", ref, commit, seconds=SECONDS)
    await note_base(git, repository, workspace_id, tip)


async def unmerged_snapshot(git: GitProgram, repository: Path, workspace_id: str) -> str | None:
    """Return the snapshot whose conflicts a workspace was made for; None: it was not."""
    form = f"--format=%(trailers:key={SNAPSHOT},valueonly,separator=%x2C)"
    commit = await git.commit_of(repository, f"{CONFLICTS}/{workspace_id}", seconds=SECONDS)
    if commit is None:
        return None
    found = await git.run(repository, "log", "-1", form, commit, seconds=SECONDS)
    return found.decode().strip() or None


async def check_resolved(room: MergeRoom, tree: str) -> None:
    """Check that a tree has no markers of conflicts any more.

    Raises:
        Conflict: some files have; names them.
    """
    done = await room.try_run("grep", "-l", "-z", "-I", "-E", "-e", _MARKER, tree)
    if done.code not in {0, 1}:
        raise git_failure("grep", done)
    names = [
        each.decode(errors="backslashreplace").partition(":")[2]
        for each in done.output.split(b"\0")
        if each
    ]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise Conflict(
            f"these files still have markers of conflicts: {', '.join(names[:_SHOWN])}{more}",
            hint="have the session resolve them, by session_message, then merge it again",
        )
