"""KeptObjects, the trees and commits that the repository has from which a project was cloned.

They stay when the project is deleted: branches as they were fetched or pushed last, and tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.runtime.repositories.project_repository import SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram

_SOURCE: Final = ("--remotes=origin", "--tags")


class KeptObjects:
    """Objects of one source."""

    def __init__(self, repository: Path, git: GitProgram) -> None:
        self._repository = repository
        self._git = git
        self._trees: set[str] | None = None

    async def has(self, tree: str, named: Sequence[str]) -> bool:
        """Return whether the source has a tree, and all of these objects.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
        if self._trees is None:
            listed = await self._run("log", *_SOURCE, "--format=%T")
            self._trees = set(listed.decode().split())
        if tree not in self._trees:
            return False
        asked = "".join(f"{each}\n" for each in named).encode()
        found = (await self._run("cat-file", "--batch-check", given=asked)).decode().splitlines()
        kinds = [line.split(" ")[1] for line in found]
        if any(kind not in {"commit", "tag"} for kind in kinds):
            return False
        lacking = await self._run(
            "rev-list", "--max-count=1", "--stdin", "--not", *_SOURCE, given=asked
        )
        return not lacking.strip()

    async def _run(self, *arguments: str, given: bytes = b"") -> bytes:
        return await self._git.run(self._repository, *arguments, given=given, seconds=SECONDS)
