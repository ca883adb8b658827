"""SharedFolder, copies of snapshots in a folder on storage that several nodes share."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.snapshots.copies import FETCHED
from oubliette.runtime.snapshots.git_program import make_repository

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.copies import CopyName
    from oubliette.runtime.snapshots.git_program import GitProgram

_TURNS: Final = ("refs/oubliette/*", "refs/oubliette-rest/*")
_ALL: Final = ("refs/heads/*", *_TURNS)


class SharedFolder:
    """Copies in one folder, each a repository to which git pushes."""

    def __init__(self, folder: Path, git: GitProgram, seconds: float) -> None:
        self._folder = folder
        self._git = git
        self._seconds = seconds

    def _copy(self, name: CopyName) -> Path:
        return self._folder / name.project_id / f"{name.name}.git"

    async def exists(self, name: CopyName) -> bool:
        return await asyncio.to_thread((self._copy(name) / "HEAD").exists)

    async def send(self, repository: Path, name: CopyName) -> None:
        """Push what is new.

        Raises:
            RuntimeFailure: the folder cannot be used, or another node has stored something since.
            DeadlineExceeded: it takes too long.
        """
        copy = self._copy(name)
        try:
            await asyncio.to_thread(make_repository, copy, durable=True)
        except OSError as error:
            raise RuntimeFailure(f"cluster.snapshots: {copy}: {error.strerror}") from error
        refs = [f"{ref}:{ref}" for ref in _ALL]
        await self._run(repository, "push", "-q", "--atomic", "--no-verify", str(copy), *refs)

    async def fetch_newest(self, repository: Path, name: CopyName) -> None:
        """Fetch the newest snapshot.

        Raises:
            RuntimeFailure: the copy cannot be used.
            DeadlineExceeded: it takes too long.
        """
        copy = str(self._copy(name))
        await self._run(repository, "fetch", "-q", copy, f"+refs/heads/*:{FETCHED}/*")

    async def fetch_turns(self, repository: Path, name: CopyName) -> None:
        """Fetch all other snapshots.

        Raises:
            RuntimeFailure: the copy cannot be used.
            DeadlineExceeded: it takes too long.
        """
        turns = [f"{ref}:{ref}" for ref in _TURNS]
        await self._run(repository, "fetch", "-q", str(self._copy(name)), *turns)

    async def drop(self, name: CopyName) -> None:
        """Remove a copy, if there is one.

        Raises:
            RuntimeFailure: it cannot be removed.
        """
        await self._remove(self._copy(name))

    async def projects(self) -> list[str]:
        """The projects that have a folder here.

        Raises:
            RuntimeFailure: the folder cannot be read.
        """
        try:
            return await asyncio.to_thread(self._projects)
        except OSError as error:
            raise RuntimeFailure(f"cluster.snapshots: {error}") from error

    def _projects(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return sorted(each.name for each in self._folder.iterdir() if each.is_dir())

    async def forget(self, project_id: str) -> None:
        """Remove the folder of a project.

        Raises:
            RuntimeFailure: it cannot be removed.
        """
        await self._remove(self._folder / project_id)

    async def _remove(self, folder: Path) -> None:
        try:
            await asyncio.to_thread(shutil.rmtree, folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RuntimeFailure(f"cluster.snapshots: {error}") from error

    async def _run(self, repository: Path, *arguments: str) -> bytes:
        return await self._git.run(repository, *arguments, seconds=self._seconds)
