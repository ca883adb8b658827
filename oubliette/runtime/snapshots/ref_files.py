"""Refs of a repository as its files have them, and the objects that a workspace's refs name.

git and the server write refs of snapshots in files that are replaced as a whole. The loose ones are
read before the packed ones: a ref that is packed meanwhile is found in one of the two places.

A repository in which objects are looked for may be an agent's: it is not opened, and its files are
text in which names are found.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.runtime.snapshots.git_program import GitProgram

LOCK: Final = ".lock"
"""End of the name of a file that git writes beside another one before it takes its place."""
PACKED: Final = "packed-refs"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def refs_below(repository: Path, prefix: str) -> dict[str, str]:
    """The refs of a repository whose names begin with a prefix: name → commit. Blocks.

    Args:
        repository: Its folder, which may be missing or have no refs.
        prefix: A folder of refs, such as `refs/oubliette/`.
    """
    found: dict[str, str] = {}
    for folder, _, names in os.walk(repository / prefix):
        for name in names:
            if name.endswith(LOCK):
                continue
            file = Path(folder, name)
            try:
                text = file.read_text("ascii").strip()
            except FileNotFoundError:
                continue  # packed since the folder was read
            if is_commit(text):
                found[file.relative_to(repository).as_posix()] = text
    return {**_packed(repository, prefix), **found}


def remove_locks(repository: Path, places: Iterable[str]) -> None:
    """Remove the locks of files of a repository, of which no program is at work. Blocks.

    Git takes a lock for that of a program that runs, also if that was killed.

    Args:
        repository: Its folder, which may be missing.
        places: Folders in it, with what is below them, and files.
    """
    for place in places:
        (repository / f"{place}{LOCK}").unlink(missing_ok=True)
        for folder, _, names in os.walk(repository / place):
            for name in names:
                if name.endswith(LOCK):
                    Path(folder, name).unlink(missing_ok=True)


def is_commit(text: str) -> bool:
    """Whether a text is the name of an object."""
    return _COMMIT.fullmatch(text) is not None


def _packed(repository: Path, prefix: str) -> dict[str, str]:
    try:
        text = (repository / PACKED).read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return {}
    lines = (line.partition(" ") for line in text.splitlines())
    return {ref: commit for commit, _, ref in lines if ref.startswith(prefix) and is_commit(commit)}


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
