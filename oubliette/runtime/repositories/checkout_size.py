"""Size of a checkout before it is made: a few bytes of a pack can become files without end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.repositories.git_errors import RepositoryTooLarge
from oubliette.runtime.snapshots.git_program import streaming

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENTRY: Final = 512
"""Bytes that each file counts more than its content: a tree can name one file very often."""
_BLOCK: Final = 1 << 16


async def check_size(
    git: str,
    tree: str,
    *,
    environment: Mapping[str, str],
    folder: Path,
    most: int,
    seconds: float,
) -> int:
    """Refuse a tree whose files would be larger than a limit; return what they count.

    Args:
        git: Path of the program.
        tree: Tree or commit.
        environment: Of git, which has the repository in it.
        folder: Its working directory.
        most: Maximum bytes of all files; 0: none.
        seconds: Its time.

    Raises:
        RepositoryTooLarge: the files would be larger.
        DeadlineExceeded: the time was too short.
        RuntimeFailure: the tree cannot be read.
    """
    if not most:
        return 0
    left, rest = most, b""
    async with streaming(
        [git, "ls-tree", "-r", "-l", "-z", tree],
        environment=environment,
        folder=folder,
        seconds=seconds,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        while block := await process.stdout.read(_BLOCK):
            *lines, rest = (rest + block).split(b"\0")
            left -= sum(map(_bytes_of, lines))
            if left < 0:
                raise RepositoryTooLarge(
                    "the files of the repository, checked out, are larger than"
                    " repositories.max_bytes",
                    hint="raise repositories.max_bytes, or begin at another branch",
                )
        if await process.wait() != 0:
            raise RuntimeFailure("git ls-tree: the files of the repository cannot be listed")
    return most - left


def _bytes_of(line: bytes) -> int:
    """Return what an entry counts; a submodule has no size."""
    size = line.partition(b"\t")[0].rsplit(b" ", 1)[-1]
    return ENTRY + (int(size) if size.isdigit() else 0)
