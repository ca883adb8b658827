"""Pointers of Git LFS in a tree: which of its files are kept elsewhere, under which name and size.

Only files with the attribute `filter=lfs` in the tree's own `.gitattributes` count, as other text
that looks like a pointer may be an example. No file is checked out, and no filter is run.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from oubliette.errors import LimitExceeded
from oubliette.runtime.repositories.git_errors import RepositoryTooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram

MAX_POINTER: Final = 1024
"""Bytes of the largest pointer."""
MAX_POINTERS: Final = 100_000
SECONDS: Final = 300.0
"""Time for one run of git."""
_POINTER: Final = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize (\d{1,18})\n?"
)
"""One with extensions is none for us: programs of a user's configuration change its content."""
_ENTRY: Final = re.compile(rb"100(?:644|755) blob ([0-9a-f]{40,64}) +(\d{1,4})\t((?s:.+))")
"""A small file in the list of a tree with sizes."""


class LfsPointer(NamedTuple):
    """The content that a pointer names."""

    oid: str
    """SHA-256 of the content."""
    size: int


def read_pointer(content: bytes) -> LfsPointer | None:
    """Return what a file of Git LFS names; None: it is no pointer."""
    found = _POINTER.fullmatch(content) if len(content) <= MAX_POINTER else None
    return None if found is None else LfsPointer(found[1].decode(), int(found[2]))


async def pointers_in(
    git: GitProgram, repository: Path, tree: str, *, most: int
) -> dict[bytes, LfsPointer]:
    """The files of a tree that Git LFS keeps, with what their pointers name.

    Args:
        git: The program.
        repository: Has the tree.
        tree: Tree or commit.
        most: Maximum bytes of the contents of all these files; 0: none.

    Raises:
        RepositoryTooLarge: they would be larger.
        LimitExceeded: there are too many.
        RuntimeFailure: git failed.
        DeadlineExceeded: it takes too long.
    """
    listed = await git.run(repository, "ls-tree", "-r", "-l", "-z", tree, seconds=SECONDS)
    entries = [_ENTRY.fullmatch(each) for each in listed.split(b"\0")]
    small = {e[3]: e[1].decode() for e in entries if e is not None and int(e[2]) <= MAX_POINTER}
    if not any(f"/{name.decode(errors='replace')}".endswith("/.gitattributes") for name in small):
        return {}
    kept = {path: small[path] for path in await _kept(git, repository, tree, small)}
    if len(kept) > MAX_POINTERS:
        raise LimitExceeded(f"Git LFS keeps more than {MAX_POINTERS} files of the repository")
    found = await _read(git, repository, kept)
    if most and sum(each.size for each in found.values()) > most:
        raise RepositoryTooLarge(
            "the files that Git LFS keeps are larger than repositories.max_bytes",
            hint="raise repositories.max_bytes, or leave lfs out to get pointers to those files",
        )
    return found


async def _kept(
    git: GitProgram, repository: Path, tree: str, paths: Mapping[bytes, str]
) -> list[bytes]:
    """Return those of the paths with the attribute `filter=lfs`."""
    index = repository / f"lfs-index-{secrets.token_hex(8)}"
    environment = {"GIT_INDEX_FILE": str(index)}
    try:
        await git.run(repository, "read-tree", tree, seconds=SECONDS, environment=environment)
        output = await git.run(
            repository, "check-attr", "--cached", "-z", "--stdin", "filter",
            given=b"".join(b"%s\0" % path for path in paths),
            seconds=SECONDS, environment=environment,
        )  # fmt: skip
    finally:
        await asyncio.to_thread(index.unlink, missing_ok=True)
    parts = output.split(b"\0")[:-1]
    return [p for p, value in zip(parts[::3], parts[2::3], strict=True) if value == b"lfs"]


async def _read(
    git: GitProgram, repository: Path, files: Mapping[bytes, str]
) -> dict[bytes, LfsPointer]:
    asked = "".join(f"{blob}\n" for blob in dict.fromkeys(files.values())).encode()
    output = await git.run(repository, "cat-file", "--batch", given=asked, seconds=SECONDS)
    known: dict[str, LfsPointer] = {}
    place = 0
    while place < len(output):
        end = output.index(b"\n", place)
        blob, _, size = output[place:end].split(b" ")
        pointer = read_pointer(output[end + 1 : end + 1 + int(size)])
        if pointer is not None:
            known[blob.decode()] = pointer
        place = end + int(size) + 2
    return {path: known[blob] for path, blob in files.items() if blob in known}
