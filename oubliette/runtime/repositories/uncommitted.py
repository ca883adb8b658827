"""Uncommitted changes of a checkout, as a commit in our repository.

The checkout is only read: its index, hooks, configuration and filters are not used. What its
`.gitignore` ignores is left out, and so are repositories inside it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.snapshots.git_program import run

if TYPE_CHECKING:
    from oubliette.runtime.snapshots.git_program import GitProgram

SECONDS: Final = 300.0
"""Time to read a checkout."""
_WHO: Final = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Oubliette"), ("EMAIL", "server@oubliette.invalid"))
}


async def commit_uncommitted(
    git: GitProgram, repository: Path, checkout: str, head: str, ref: str
) -> bool:
    """Commit what differs in a checkout from its HEAD; return whether anything does.

    Args:
        git: The program.
        repository: Ours, which has the commit `head`.
        checkout: Folder with the working tree.
        head: Commit that is the new one's parent.
        ref: Name of the new commit; removed where nothing differs.

    Raises:
        RuntimeFailure: it cannot be read.
        DeadlineExceeded: reading it takes too long.
    """
    index = repository / "uncommitted-index"
    excludes = Path(checkout) / ".git" / "info" / "exclude"
    environment = git.environment(repository) | {
        "GIT_WORK_TREE": checkout,
        "GIT_INDEX_FILE": str(index),
        **_WHO,
    }
    settings = ["-c", "core.bare=false", "-c", f"core.excludesFile={excludes}"]

    async def call(*arguments: str, given: bytes = b"") -> bytes:
        done = await run(
            [git.path, *settings, *arguments],
            environment=environment,
            folder=Path(checkout),
            given=given,
            seconds=SECONDS,
        )
        if done.code != 0:
            raise RuntimeFailure(f"the checkout {checkout} cannot be read: {done.errors}")
        return done.output

    try:
        await call("read-tree", head)
        others = await call("ls-files", "-z", "--others", "--exclude-standard")
        changed = await call("ls-files", "-z", "--modified", "--deleted")
        paths = {
            each
            for each in (others + changed).split(b"\0")
            if each and not each.endswith(b"/")  # a repository inside, which git shows as a folder
        }
        if paths:
            given = b"\0".join(sorted(paths)) + b"\0"
            await call("update-index", "-z", "--add", "--remove", "--stdin", given=given)
        tree = (await call("write-tree")).decode().strip()
        if tree == (await call("rev-parse", f"{head}^{{tree}}")).decode().strip():
            await call("update-ref", "-d", ref)
            return False
        message = ("commit-tree", "-p", head, "-m", "Uncommitted changes", tree)
        commit = (await call(*message)).decode().strip()
        await call("update-ref", ref, commit)
        return True
    finally:
        await asyncio.to_thread(index.unlink, missing_ok=True)
