"""Paths that `.gitignore` files name, found without a checkout.

These files of a tree are laid into an empty folder, and git is asked there.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from oubliette.runtime.repositories.merging.laid_out import lay_out
from oubliette.runtime.snapshots.git_program import git_failure

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from oubliette.runtime.repositories.merging.merge_room import MergeRoom

GITIGNORE: Final = b".gitignore"
MAX_BYTES: Final = 1 << 20
"""Largest `.gitignore` that is read."""
_NONE: Final = 1
"""Exit code of git where no path is ignored."""


async def ignored(
    room: MergeRoom, rules: Mapping[bytes, str], paths: Collection[bytes]
) -> set[bytes]:
    """Return those of the paths that are ignored.

    Args:
        room: Has the contents.
        rules: Path of each `.gitignore` that is a file, and the name of its content.
        paths: Paths of files.

    Raises:
        RuntimeFailure: git failed.
        DeadlineExceeded: it takes too long.
    """
    if not rules or not paths:
        return set()
    folder = room.folder / f"rules-{secrets.token_hex(4)}"
    await lay_out(room, folder, rules, MAX_BYTES)
    more = {"GIT_WORK_TREE": str(folder), "GIT_LITERAL_PATHSPECS": None, "GIT_INDEX_FILE": None}
    # A leading ./ keeps git from reading :(…) in a name as more than a name.
    given = b"".join(b"./%s\0" % path for path in sorted(paths))
    done = await room.try_run(
        *("-C", str(folder), "-c", "core.bare=false", "-c", "core.excludesFile=/dev/null"),
        *("check-ignore", "-z", "--stdin", "--no-index"),
        given=given,
        more=more,
    )
    if done.code not in {0, _NONE}:
        raise git_failure("check-ignore", done)
    return {each.removeprefix(b"./") for each in done.output.split(b"\0") if each}
