"""Reading of a repository's refs from its files, without a process of git for each repository.

git and the server write refs of snapshots in files that are replaced as a whole. The loose ones are
read before the packed ones: a ref that is packed meanwhile is found in one of the two places.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

LOCK: Final = ".lock"
"""End of the name of a file that git writes beside another one before it takes its place."""
PACKED: Final = "packed-refs"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def refs_below(repository: Path, prefix: str) -> dict[str, str]:
    """Return the refs of a repository whose names begin with a prefix: name → commit. Blocks.

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
    """Return whether a text is the name of an object."""
    return _COMMIT.fullmatch(text) is not None


def _packed(repository: Path, prefix: str) -> dict[str, str]:
    try:
        text = (repository / PACKED).read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return {}
    lines = (line.partition(" ") for line in text.splitlines())
    return {ref: commit for commit, _, ref in lines if ref.startswith(prefix) and is_commit(commit)}
