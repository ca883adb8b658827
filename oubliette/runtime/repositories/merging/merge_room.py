"""MergeRoom, a place for objects of git that are being made of a repository and of snapshots.

What is made there can name objects of both, and neither of them is written. `keep` gives the
repository what a commit needs, and only that, after git has checked each object. A room that a
crash left behind is removed with what else was unfinished.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.repositories.workspace_clone import NEW
from oubliette.runtime.snapshots.git_program import git_failure, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from oubliette.runtime.snapshots.git_program import GitProgram, ProgramOutput

SECONDS: Final = 120.0
"""Time for one run of git."""
_NAME: Final = "Oubliette"
_EMAIL: Final = "oubliette@oubliette.invalid"
"""As in the commits of snapshots."""
_UNKNOWN: Final = "unknown"


class MergeRoom:
    """A place for new objects, as long as its block runs.

    Args:
        repository: Folder of the project's repository.
        snapshots: Folder of the repository with a workspace's snapshots.
        git: The program.
    """

    def __init__(self, repository: Path, snapshots: Path, git: GitProgram) -> None:
        self._repository = repository
        self._git = git
        self.folder = repository.parent / f".{secrets.token_hex(16)}{NEW}"
        others = (repository / "objects", snapshots / "objects")
        self._environment = git.environment(repository) | {
            "GIT_OBJECT_DIRECTORY": str(self.folder / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(_quoted(str(each)) for each in others),
            "GIT_INDEX_FILE": str(self.folder / "index"),
        }

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._make)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _make(self) -> None:
        for name in ("objects", "packs"):
            (self.folder / name).mkdir(mode=0o700, parents=True)

    async def try_run(
        self,
        *arguments: str,
        given: bytes = b"",
        more: Mapping[str, str | None] | None = None,
        seconds: float = SECONDS,
    ) -> ProgramOutput:
        """Run a command of git on what is there; return its exit code and output.

        Args:
            arguments: The command.
            given: Its standard input.
            more: Further variables of its environment; None removes one.
            seconds: Its time.

        Raises:
            DeadlineExceeded: it takes too long.
            RuntimeFailure: git cannot be started.
        """
        together = {**self._environment, **(more or {})}
        return await run(
            [self._git.path, *arguments],
            environment={name: value for name, value in together.items() if value is not None},
            folder=self.folder,
            given=given,
            seconds=seconds,
        )

    async def run(
        self,
        *arguments: str,
        given: bytes = b"",
        more: Mapping[str, str | None] | None = None,
        seconds: float = SECONDS,
    ) -> bytes:
        """Run a command of git that must not fail; return its output."""
        done = await self.try_run(*arguments, given=given, more=more, seconds=seconds)
        if done.code != 0:
            raise git_failure(arguments[0], done)
        return done.output

    async def run_onto(self, file: Path, *arguments: str) -> None:
        """Append the output of a command of git to a file."""
        done = await run(
            [self._git.path, *arguments],
            environment=self._environment,
            folder=self.folder,
            seconds=SECONDS,
            onto=file,
        )
        if done.code != 0:
            raise git_failure(arguments[0], done)

    async def line(self, *arguments: str, given: bytes = b"") -> str:
        """Run a command of git that writes one line; return it."""
        return (await self.run(*arguments, given=given)).decode().strip()

    async def commit(
        self,
        tree: str,
        parents: Sequence[str],
        message: str,
        *,
        written: float,
        made: float,
        author: tuple[str, str] | None = None,
    ) -> str:
        """Make a commit.

        Args:
            tree: Its tree.
            parents: Its parents.
            message: Its message.
            written: Second since 1970 at which its content was made.
            made: Second at which the commit is made.
            author: Name and address of the author; None: Oubliette.
        """
        name, email = author or (_NAME, _EMAIL)
        who = {
            "GIT_AUTHOR_NAME": name or _UNKNOWN,
            "GIT_AUTHOR_EMAIL": email,
            "GIT_AUTHOR_DATE": f"@{int(written)} +0000",
            "GIT_COMMITTER_NAME": _NAME,
            "GIT_COMMITTER_EMAIL": _EMAIL,
            "GIT_COMMITTER_DATE": f"@{int(made)} +0000",
        }
        options = [word for parent in parents for word in ("-p", parent)]
        output = await self.run("commit-tree", *options, tree, given=message.encode(), more=who)
        return output.decode().strip()

    async def keep(self, commit: str) -> None:
        """Give the repository all that a commit needs and it has not; no ref names it yet.

        Raises:
            DeadlineExceeded: it takes too long.
            RuntimeFailure: git refuses an object, or failed.
        """
        listed = await self.run("rev-list", "--objects", commit, "--not", "--all")
        if not listed:
            return
        base = str(self.folder / "packs" / "pack")
        name = await self.line("pack-objects", "-q", "--threads=1", base, given=listed)
        pack = self.folder / "packs" / f"pack-{name}.pack"
        # Checked against the repository alone: what a commit needs is in it, or in the pack.
        alone = {name: None for name in self._environment if name.startswith("GIT_ALTERNATE")}
        alone |= {"GIT_OBJECT_DIRECTORY": None}
        checked = str(self.folder / "packs" / "checked.idx")
        done = await self.try_run(
            "index-pack", "--strict", "--fsck-objects", "-o", checked, str(pack), more=alone
        )
        if done.code != 0:
            raise RuntimeFailure(
                f"git refuses what is to be merged: {done.errors}",
                hint="remove the file that it names from the workspace, and merge with strategy"
                " squash, which leaves earlier states out",
            )
        await asyncio.to_thread(self._place, pack)

    def _place(self, pack: Path) -> None:
        packs = self._repository / "objects" / "pack"
        packs.mkdir(mode=0o700, exist_ok=True)
        for ending in (".pack", ".idx"):  # without an index, git does not look at a pack
            file = pack.with_suffix(ending)
            file.replace(packs / file.name)


def _quoted(path: str) -> str:
    """A path for a list of them, which has colons between."""
    if ":" not in path and not path.startswith('"'):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
