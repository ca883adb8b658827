"""Objects that the repository of a workspace names, as a snapshot has its refs and logs.

The repository may be an agent's: it is not opened, and its files are text in which names are found.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram

MAX_NAMED: Final = 10_000
MAX_BYTES: Final = 32 << 20
"""Bytes of files in which names are looked for."""
_OWN: Final = (b"manifest", b"files/.factory/", b"files/.rlm-context/")
_GIT: Final = b"files/%.git/"
_WITHOUT_NAMES: Final = (
    b"objects/", b"hooks/", b"info/", b"index", b"config", b"description", b"COMMIT_EDITMSG",
)  # fmt: skip
_ENTRY: Final = re.compile(rb"\d{6} blob ([0-9a-f]{40,64}) +(\d+)\t((?s:.+))")
_OBJECT: Final = re.compile(rb"\b[0-9a-f]{40}\b")
_NONE: Final = b"0" * 40


async def named_objects(
    git: GitProgram, repository: Path, rest: str, seconds: float
) -> tuple[str, ...] | None:
    """Return the objects that are named; None: that cannot be found out.

    Args:
        git: The program.
        repository: The repository with the snapshot.
        rest: Commit of what git's users do not want, which has the workspace's `.git`.
        seconds: Time for each run of git.

    Raises:
        RuntimeFailure: git failed.
        DeadlineExceeded: it takes too long.
    """
    listed = await git.run(repository, "ls-tree", "-r", "-l", "-z", rest, seconds=seconds)
    blobs: list[str] = []
    size = 0
    for entry in listed.split(b"\0")[:-1]:
        found = _ENTRY.fullmatch(entry)
        if found is None:
            return None
        path = found[3]
        if path.startswith(_GIT):
            if not path.removeprefix(_GIT).startswith(_WITHOUT_NAMES):
                blobs.append(found[1].decode())
                size += int(found[2])
        elif not path.startswith(_OWN):
            return None  # another repository, below this one
    if size > MAX_BYTES:
        return None
    asked = "".join(f"{each}\n" for each in blobs).encode()
    text = await git.run(
        repository, "cat-file", "--batch=%(objectsize)", given=asked, seconds=seconds
    )
    names = {each for each in _OBJECT.findall(text) if each != _NONE}
    if len(names) > MAX_NAMED:
        return None
    return tuple(sorted(each.decode() for each in names))
