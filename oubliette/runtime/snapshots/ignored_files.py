"""IgnoredFiles, which finds the changes that git's users do not want to see.

A file is ignored if the `.gitignore` files of the newer state name it, and it was not in the
workspace when that was stored first: what came with a repository is a part of it. Those files are
read from the snapshot and matched by git; no file of the workspace is opened.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence

    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.snapshot_names import DiffRange

_RULES: Final = re.compile(rb"(100\d{3} blob [0-9a-f]{40}) +(\d{1,6})(\t(?s:.*/)?\.gitignore)\Z")
"""Entry of a `.gitignore` that is a file of less than 1 MB, in the list of a tree with sizes."""
_FIRST: Final = "%H %(trailers:key=Moment,valueonly,separator=)"
_NONE_IGNORED: Final = 1
"""Exit code of `git check-ignore`."""


class IgnoredFiles:
    """Finder of the ignored files of one repository."""

    def __init__(self, repository: Path, git: GitProgram, seconds: float) -> None:
        self._repository = repository
        self._git = git
        self._seconds = seconds

    async def hidden(self, between: DiffRange, paths: Sequence[str]) -> DiffRange:
        """Return these states, with a tree to compare that differs in no ignored file.

        Args:
            between: The states; the newer one is a commit.
            paths: Arguments that select files and folders; empty: all.
        """
        listing = await self._run(
            "diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", "--no-abbrev",
            between.old, between.new, *paths,
        )  # fmt: skip
        parts = listing.split(b"\0")[:-1]
        changed = dict(zip(parts[1::2], parts[::2], strict=True))
        ignored = await self.among(between.new, changed)
        ignored -= await self._first(between.new, ignored)
        if not ignored:
            return between
        entries: list[bytes] = []
        for path in sorted(ignored):
            _, mode, _, name, _ = changed[path].split(b" ")
            entries.append(mode + b" " + name + b"\t" + path + b"\0")
        async with self._index() as index:
            await self._run("read-tree", between.old, environment=index)
            await self._run(
                "update-index", "-z", "--index-info", given=b"".join(entries), environment=index
            )
            tree = await self._run("write-tree", environment=index)
        return msgspec.structs.replace(
            between, old_shown=tree.decode().strip(), ignored=len(ignored)
        )

    async def among(self, commit: str, paths: Collection[bytes]) -> set[bytes]:
        """Return which of these paths the `.gitignore` files of a commit name."""
        if not paths:
            return set()
        listed = await self._run("ls-tree", "-r", "-l", "-z", commit)
        entries = [_RULES.match(each) for each in listed.split(b"\0")]
        rules = [each[1] + each[3] for each in entries if each is not None]
        if not rules:
            return set()
        async with self._index() as index:
            await self._run(
                "update-index", "-z", "--index-info", given=_lines(rules), environment=index
            )
            # git reads those files from the index, then, instead of from the working tree.
            await self._run(
                "update-index", "-z", "--skip-worktree", "--stdin",
                given=_lines(each.partition(b"\t")[2] for each in rules), environment=index,
            )  # fmt: skip
            # The command refuses literal pathspecs; with ./ before it a path has no magic either.
            found = await self._run(
                "check-ignore", "-z", "--stdin",
                given=_lines(b"./" + path for path in paths),
                environment={**index, "GIT_LITERAL_PATHSPECS": "0"},
                accepted=(0, _NONE_IGNORED),
            )  # fmt: skip
        return {path.removeprefix(b"./") for path in found.split(b"\0")[:-1]}

    async def _first(self, commit: str, paths: set[bytes]) -> set[bytes]:
        """Return which of these files were there before anything was done in the workspace."""
        if not paths:
            return set()
        shown = await self._run("rev-list", "--max-parents=0", f"--format={_FIRST}", commit)
        first, moment = shown.decode().split("\n")[1].split(" ")
        if moment != "start":  # the workspace was empty then
            return set()
        names = await self._run("ls-tree", "-r", "-z", "--name-only", first)
        return paths & set(names.split(b"\0"))

    @contextlib.asynccontextmanager
    async def _index(self) -> AsyncGenerator[dict[str, str]]:
        """Give the variables of an index of its own, with an empty working tree."""
        folder = await asyncio.to_thread(
            tempfile.TemporaryDirectory, prefix="index-", dir=self._repository
        )
        try:
            empty = Path(folder.name) / "empty"
            empty.mkdir()
            yield {"GIT_INDEX_FILE": f"{folder.name}/index", "GIT_WORK_TREE": str(empty)}
        finally:
            await asyncio.to_thread(folder.cleanup)

    async def _run(
        self,
        *arguments: str,
        given: bytes = b"",
        environment: Mapping[str, str] | None = None,
        accepted: tuple[int, ...] = (0,),
    ) -> bytes:
        return await self._git.run(
            self._repository,
            *arguments,
            given=given,
            seconds=self._seconds,
            environment=environment,
            accepted=accepted,
        )


def _lines(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)
