"""Bundles, files of git with snapshots: all, or what is new; and copies that are made of them.

A bundle has the refs of its snapshots also where it needs no new object for them: a turn that
changed nothing is a ref to an older commit.

When there are many parts, or they are much larger than the first one, they are replaced by one. No
part is ever in memory as a whole.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import LimitExceeded, NotFound, RuntimeFailure
from oubliette.runtime.snapshots.copies import FETCHED, UNSENT, CopyPart, CopyRecord
from oubliette.runtime.snapshots.workspace.tree_table import PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.snapshots.copies import CopyName, CopyParts
    from oubliette.runtime.snapshots.git_program import GitProgram

TURNS: Final = {"files": "refs/oubliette", "rest": "refs/oubliette-rest"}
STAGED: Final = {part: f"refs/second-turns/{part}" for part in PARTS}
"""Refs of the snapshots of turns that were fetched, until they get their own names."""
_SIGNATURE: Final = b"# v2 git bundle\n"


class Bundler:
    """Maker and reader of bundles."""

    def __init__(self, git: GitProgram, seconds: float) -> None:
        self._git = git
        self._seconds = seconds

    async def heads(self, repository: Path) -> dict[str, str]:
        """Return the commits of the newest snapshot; nothing without one."""
        found = await self._refs(repository, *(f"refs/heads/{part}" for part in PARTS))
        heads = {ref.removeprefix("refs/heads/"): commit for ref, commit in found.items()}
        return heads if heads.keys() == set(PARTS) else {}

    async def leads_from(self, repository: Path, heads: Mapping[str, str]) -> bool:
        """Whether the newest snapshot of a repository comes after these commits, or is them."""
        if not await self.has(repository, heads):
            return False
        for part in PARTS:
            contains = f"--contains={heads[part]}"
            if not await self._run(repository, "for-each-ref", contains, f"refs/heads/{part}"):
                return False
        return True

    async def has(self, repository: Path, heads: Mapping[str, str]) -> bool:
        """Whether a repository has these commits."""
        asked = "".join(f"{heads[part]}\n" for part in PARTS).encode()
        answer = await self._run(repository, "cat-file", "--batch-check=%(objecttype)", given=asked)
        return answer.split() == [b"commit"] * len(PARTS)

    async def write(self, repository: Path, file: Path, since: Mapping[str, str] | None) -> None:
        """Write a bundle into a new file.

        Args:
            repository: Its repository, which has a snapshot.
            file: Path of the bundle.
            since: Commits of the snapshot that its receiver has; None: it has nothing.

        Raises:
            RuntimeFailure: git failed, or the file cannot be written.
            DeadlineExceeded: it takes too long.
        """
        refs = await self._refs(repository, *(f"refs/heads/{part}" for part in PARTS))
        refs |= await self._turns(repository, since)
        known = [] if since is None else sorted(set(since.values()))
        lines = [f"-{commit}\n" for commit in known]
        lines += [f"{commit} {ref}\n" for ref, commit in refs.items()]
        wanted = [*(f"^{commit}\n" for commit in known), *(f"{c}\n" for c in set(refs.values()))]
        head = _SIGNATURE + "".join(lines).encode() + b"\n"
        await asyncio.to_thread(file.write_bytes, head)
        await self._run(
            repository,
            "pack-objects",
            "--revs",
            "--stdout",
            "--thin",
            "--delta-base-offset",
            "-q",
            given="".join(wanted).encode(),
            onto=file,
        )

    async def _turns(self, repository: Path, since: Mapping[str, str] | None) -> dict[str, str]:
        """Return the refs of turns since a snapshot; some that are older may be among them."""
        if since is None:
            return await self._refs(repository, *TURNS.values())
        contains = f"--contains={since['files']}"
        found = await self._refs(repository, contains, TURNS["files"])
        rest = await self._refs(repository, f"--contains={since['rest']}", TURNS["rest"])
        both = {ref.removeprefix(f"{TURNS['files']}/") for ref in found}
        both &= {ref.removeprefix(f"{TURNS['rest']}/") for ref in rest}
        return {
            ref: commit
            for ref, commit in (*found.items(), *rest.items())
            if ref.split("/", 2)[2] in both
        }

    async def fetch(self, repository: Path, file: Path) -> None:
        """Fetch a bundle: its newest snapshot below `FETCHED`, those of turns below `STAGED`.

        Raises:
            RuntimeFailure: git failed: the bundle is damaged, or the one before it is missing.
            DeadlineExceeded: it takes too long.
        """
        staged = [f"+{TURNS[part]}/*:{STAGED[part]}/*" for part in PARTS]
        newest = f"+refs/heads/*:{FETCHED}/*"
        await self._run(repository, "fetch", "-q", "--no-tags", str(file), newest, *staged)

    async def mark_newest(self, repository: Path, heads: Mapping[str, str]) -> None:
        """Set the refs of the newest snapshot of a copy to commits that are here already."""
        lines = [f"update {FETCHED}/{part} {heads[part]}\n" for part in PARTS]
        await self._run(repository, "update-ref", "--stdin", given="".join(lines).encode())

    async def unstage(self, repository: Path) -> None:
        """Give fetched snapshots of turns their own names; those that are here already stay."""
        here = await self._refs(repository, *TURNS.values())
        staged = await self._refs(repository, *STAGED.values())
        lines: list[str] = []
        for ref, commit in staged.items():
            _, _, part, name = ref.split("/", 3)
            own = f"{TURNS[part]}/{name}"
            if own not in here:
                lines.append(f"update {own} {commit}\n")
            lines.append(f"delete {ref}\n")
        await self._run(repository, "update-ref", "--stdin", given="".join(lines).encode())

    async def _refs(self, repository: Path, *wanted: str) -> dict[str, str]:
        return await self._git.refs(repository, *wanted, seconds=self._seconds)

    async def _run(
        self, repository: Path, *arguments: str, given: bytes = b"", onto: Path | None = None
    ) -> bytes:
        return await self._git.run(
            repository, *arguments, given=given, seconds=self._seconds, onto=onto
        )


def size_and_digest(file: Path) -> tuple[int, str]:
    """The size of a file and its SHA-256, in hexadecimal. Blocks."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return opened.tell(), digest


MAX_PARTS: Final = 32
"""Parts above which they are made one."""
SLACK_BYTES: Final = 4 * 1024 * 1024
"""Size by which all parts together may exceed twice the first one."""


class BundledCopies:
    """Copies of repositories, as bundles. Their owner calls one method at a time for each copy."""

    def __init__(self, parts: CopyParts, git: GitProgram, seconds: float, max_bytes: int) -> None:
        self._parts = parts
        self._bundler = Bundler(git, seconds)
        self._max_bytes = max_bytes

    async def exists(self, name: CopyName) -> bool:
        """Whether there is a copy.

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
        """Fetch all parts in their order, to `FETCHED`, unless the newest snapshot is here.

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
        """Give the snapshots of turns, which came with the newest one, their own names."""
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
        return await self._parts.projects()

    async def forget(self, project_id: str) -> None:
        """Remove the copies of a project that is deleted.

        Raises:
            OublietteError: they cannot be removed now.
        """
        await self._parts.forget(project_id)
