"""BundledCopies, copies of snapshots in parts: a bundle with all, and bundles with what was new.

When there are many parts, or they are much larger than the first one, they are replaced by one. No
part is ever in memory as a whole.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import LimitExceeded, NotFound, RuntimeFailure
from oubliette.runtime.snapshots.bundles import Bundler, size_and_digest
from oubliette.runtime.snapshots.copy_records import UNSENT, CopyPart, CopyRecord

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.copies import CopyParts
    from oubliette.runtime.snapshots.copy_records import CopyName
    from oubliette.runtime.snapshots.git_program import GitProgram

MAX_PARTS: Final = 32
"""Parts above which they are made one."""
SLACK_BYTES: Final = 4 * 1024 * 1024
"""Size by which all parts together may exceed twice the first one."""


class BundledCopies:
    """Copies that consist of bundles.

    Args:
        parts: Keeper of the bundles.
        git: The program.
        seconds: Time for each run of git.
        max_bytes: Size limit of a copy.
    """

    def __init__(self, parts: CopyParts, git: GitProgram, seconds: float, max_bytes: int) -> None:
        self._parts = parts
        self._bundler = Bundler(git, seconds)
        self._max_bytes = max_bytes

    async def exists(self, name: CopyName) -> bool:
        """Return whether there is a copy.

        Raises:
            OublietteError: the records cannot be reached.
        """
        record = await self._parts.read(name)
        return record is not None and bool(record.parts)

    async def send(self, repository: Path, name: CopyName) -> None:
        """Send a bundle with what is new, or one with all.

        Raises:
            LimitExceeded: the copy would be larger than allowed; it stays as it was.
            Conflict: another node has stored something since.
            OublietteError: another reason for which it was not sent.
        """
        if not await asyncio.to_thread((repository / "HEAD").exists):
            return
        record = await self._parts.read(name)
        heads = await self._bundler.heads(repository)
        if not heads:
            return
        if record is not None and not await self._bundler.leads_from(repository, record.heads):
            raise RuntimeFailure("another node has stored a snapshot that is not here")
        place = await self._parts.place(name, record)
        kept = None if place.whole or record is None or not record.parts else record
        if kept is not None and kept.heads == heads:
            return
        file = repository / f"{UNSENT}{secrets.token_hex(16)}"
        try:
            parts = None if kept is None else await self._with_new(repository, file, kept)
            if parts is None:
                parts = (await self._part(repository, file, since=None),)
            if sum(part.bytes for part in parts) > self._max_bytes:
                raise LimitExceeded(
                    "all snapshots of the workspace together are larger than"
                    f" cluster.snapshots_max_bytes ({self._max_bytes})",
                    hint="raise it, or delete large files and begin another workspace",
                )
            await self._parts.put(name, place.holder, parts[-1], file)
        finally:
            await asyncio.to_thread(file.unlink, missing_ok=True)
        version = 1 if record is None else record.version + 1
        await self._parts.publish(
            name, CopyRecord(version=version, holder=place.holder, parts=parts, **heads)
        )

    async def _with_new(
        self, repository: Path, file: Path, record: CopyRecord
    ) -> tuple[CopyPart, ...] | None:
        """Write a bundle with what is new; return all parts, None if they are to be made one."""
        if len(record.parts) >= MAX_PARTS:
            return None
        part = await self._part(repository, file, since=record.heads)
        size = record.bytes + part.bytes
        if size > min(2 * record.parts[0].bytes + SLACK_BYTES, self._max_bytes):
            return None
        return (*record.parts, part)

    async def _part(
        self, repository: Path, file: Path, *, since: dict[str, str] | None
    ) -> CopyPart:
        await self._bundler.write(repository, file, since)
        size, digest = await asyncio.to_thread(size_and_digest, file)
        return CopyPart(id=secrets.token_hex(16), bytes=size, sha256=digest)

    async def fetch_newest(self, repository: Path, name: CopyName) -> None:
        """Fetch all parts in their order, unless the newest snapshot is here.

        Raises:
            NotFound: there is no copy.
            RuntimeFailure: a part is not the one that was sent, or cannot be read.
            OublietteError: the parts cannot be reached.
        """
        record = await self._parts.read(name)
        if record is None:
            raise NotFound("there is no copy of the snapshots")
        if await self._bundler.leads_from(repository, record.heads):  # nothing has to come
            await self._bundler.mark_newest(repository, record.heads)
            return
        for part in record.parts:
            file = repository / f"{UNSENT}{part.id}"
            await asyncio.to_thread(file.unlink, missing_ok=True)
            try:
                await self._parts.get(name, record.holder, part, file)
                if await asyncio.to_thread(size_and_digest, file) != (part.bytes, part.sha256):
                    raise RuntimeFailure(f"part {part.id} of the copy is damaged")
                await self._bundler.fetch(repository, file)
            finally:
                await asyncio.to_thread(file.unlink, missing_ok=True)

    async def fetch_turns(self, repository: Path, name: CopyName) -> None:
        """Give the snapshots of turns, which came with the newest one, their own names.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
        del name
        await self._bundler.unstage(repository)

    async def drop(self, name: CopyName) -> None:
        """Remove all parts of a copy; its record stays as long as its project.

        Raises:
            OublietteError: they cannot be removed now.
        """
        record = await self._parts.read(name)
        if record is not None and record.parts:
            version = record.version + 1
            empty = msgspec.structs.replace(record, version=version, holder="", parts=())
            await self._parts.publish(name, empty)

    async def projects(self) -> list[str]:
        """Return the projects that are deleted and have copies.

        Raises:
            OublietteError: the records cannot be reached.
        """
        return await self._parts.projects()

    async def forget(self, project_id: str) -> None:
        """Remove the copies of a project that is deleted.

        Raises:
            OublietteError: they cannot be removed now.
        """
        await self._parts.forget(project_id)
