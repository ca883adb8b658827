"""Commits that workspaces were made of: refs of the project's repository, by workspace.

They are written before the workspace is there, and the server alone writes them: what an agent
does to the `.git` of its workspace does not count.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.errors import Conflict
from oubliette.runtime.repositories.project_repository import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram

BASES: Final = "refs/oubliette/base"
"""Refs of the project's repository, by workspace."""


async def note_base(git: GitProgram, repository: Path, workspace_id: str, commit: str) -> None:
    """Note the commit that a workspace is made of."""
    ref = f"{BASES}/{workspace_id}"
    await git.run(repository, "update-ref", ref, commit, seconds=SECONDS)


async def inherit_base(git: GitProgram, repository: Path, source: str, copy: str) -> None:
    """Note for a copy what is noted for its source, and nothing where nothing is."""
    commit = await git.commit_of(repository, f"{BASES}/{source}", seconds=SECONDS)
    change = ("-d", f"{BASES}/{copy}") if commit is None else (f"{BASES}/{copy}", commit)
    await git.run(repository, "update-ref", *change, seconds=SECONDS)


async def base_of(git: GitProgram, repository: Path, workspace_id: str, first_tree: str) -> str:
    """The commit that a workspace was made of.

    Args:
        git: The program.
        repository: The project's.
        workspace_id: Id of the workspace.
        first_tree: Tree of its first snapshot, by which the commit is found where it was not
            noted: in a repository that was cloned again, as another machine had the first one.

    Raises:
        Conflict: it is not known.
    """
    noted = await git.commit_of(repository, f"{BASES}/{workspace_id}", seconds=SECONDS)
    if noted is not None:
        return noted
    listed = await git.run(repository, "log", "--all", "--format=%H %T", seconds=SECONDS)
    for line in listed.decode().splitlines():
        commit, _, tree = line.partition(" ")
        if tree == first_tree:
            return commit
    raise Conflict(
        f"the commit that workspace {workspace_id} was made of is not in the project's repository",
        hint="take the changes out by session_export",
    )
