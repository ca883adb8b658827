"""SecondPlace, which restores workspaces from the copies of their snapshots.

A copy is sent after each snapshot. A node on which a workspace is used that was on another one
before finds its files there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oubliette.runtime.snapshots.copies import FETCHED
from oubliette.runtime.snapshots.git_program import make_repository
from oubliette.runtime.snapshots.snapshot_records import Brought, SnapshotLabel
from oubliette.runtime.snapshots.workspace.tree_table import PARTS

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.bundles import BundledCopies
    from oubliette.runtime.snapshots.copies import CopyName
    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.shadow_repository import ShadowRepository
    from oubliette.runtime.snapshots.shared_folder import SharedFolder


class SecondPlace:
    """The copies of this server's repositories."""

    def __init__(
        self, copies: BundledCopies | SharedFolder, git: GitProgram, seconds: float
    ) -> None:
        self.copies = copies
        self._git = git
        self._seconds = seconds

    async def send(self, repository: ShadowRepository, name: CopyName) -> None:
        """Send what is new in a repository.

        A copy in which another node has stored something since is not changed.

        Raises:
            OublietteError: it was not sent; contains the reason.
        """
        await self.copies.send(repository.repository, name)

    async def bring(
        self, repository: ShadowRepository, name: CopyName, now: float
    ) -> Brought | None:
        """Restore a workspace that has its newest snapshot from another node.

        Files that are here and not in that snapshot are stored before, as a snapshot of their own.
        A workspace that has files and was never stored here is left alone.

        Args:
            repository: Of the workspace, here.
            name: Of its copy.
            now: Second since 1970.

        Returns:
            The restored files; None: the workspace here is the newest.

        Raises:
            RuntimeFailure: the copy or the workspace cannot be used.
            DeadlineExceeded: it takes too long.
            NotFound: the workspace is gone.
        """
        if not await self.copies.exists(name):
            return None
        if await repository.exists():
            heads = await self._fetched(repository.repository, name)
            if not heads or not await self._is_newer(repository.repository):
                return None
            label = SnapshotLabel(session_id="workspace", turn=int(now), moment="final", when=now)
            await repository.take(label)
        else:
            if not await repository.is_unused():
                return None
            await asyncio.to_thread(make_repository, repository.repository, durable=False)
            heads = await self._fetched(repository.repository, name)
            if not heads:
                return None
        await self.copies.fetch_turns(repository.repository, name)
        await repository.follow(heads)
        restored = await repository.restore()
        return Brought(
            commit=heads["files"],
            rest=heads["rest"],
            written=restored.written,
            missing=restored.missing_count,
        )

    async def _fetched(self, repository: Path, name: CopyName) -> dict[str, str]:
        """Fetch the newest snapshot of a copy; return its commits."""
        await self.copies.fetch_newest(repository, name)
        text = await self._run(
            repository, "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", FETCHED
        )
        found = dict(line.split(" ", 1) for line in text.decode().splitlines())
        return found if found.keys() == set(PARTS) else {}

    async def _is_newer(self, repository: Path) -> bool:
        """Whether the fetched snapshot is newer than the newest one here.

        It is if it comes after that one, or, where both nodes have stored something, by its time.
        """
        newer = [await self._part_is_newer(repository, part) for part in PARTS]
        return newer[0] is True or (newer[0] is None and newer[1] is True)

    async def _part_is_newer(self, repository: Path, part: str) -> bool | None:
        """Return whether the fetched commit of a part is newer; None: it is the same one."""
        here, there = f"refs/heads/{part}", f"{FETCHED}/{part}"
        if await self._run(repository, "for-each-ref", f"--contains={there}", here):
            same = await self._run(repository, "for-each-ref", f"--contains={here}", there)
            return None if same else False
        if await self._run(repository, "for-each-ref", f"--contains={here}", there):
            return True
        text = await self._run(
            repository, "for-each-ref", "--format=%(refname) %(committerdate:unix)", here, there
        )
        times = dict(line.split(" ") for line in text.decode().splitlines())
        return int(times.get(there, 0)) > int(times.get(here, 0))

    async def _run(self, repository: Path, *arguments: str) -> bytes:
        return await self._git.run(repository, *arguments, seconds=self._seconds)
