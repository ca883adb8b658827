"""Bundles, files of git with the snapshots of a repository, or with those since another one.

A bundle has the refs of its snapshots also where it needs no new object for them: a turn that
changed nothing is a ref to an older commit.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from oubliette.runtime.snapshots.copies import FETCHED
from oubliette.runtime.snapshots.names import PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram

TURNS: Final = {"files": "refs/oubliette", "rest": "refs/oubliette-rest"}
STAGED: Final = {part: f"refs/second-turns/{part}" for part in PARTS}
"""Refs of the snapshots of turns that were fetched, until they get their own names."""
_SIGNATURE: Final = b"# v2 git bundle\n"


class Bundler:
    """Maker and reader of bundles.

    Args:
        git: The program.
        seconds: Time for each of its runs.
    """

    def __init__(self, git: GitProgram, seconds: float) -> None:
        self._git = git
        self._seconds = seconds

    async def heads(self, repository: Path) -> dict[str, str]:
        """Return the commits of the newest snapshot; nothing without one.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
        found = await self._refs(repository, *(f"refs/heads/{part}" for part in PARTS))
        heads = {ref.removeprefix("refs/heads/"): commit for ref, commit in found.items()}
        return heads if heads.keys() == set(PARTS) else {}

    async def leads_from(self, repository: Path, heads: Mapping[str, str]) -> bool:
        """Return whether the newest snapshot of a repository comes after these commits, or is them.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
        if not await self.has(repository, heads):
            return False
        for part in PARTS:
            contains = f"--contains={heads[part]}"
            if not await self._run(repository, "for-each-ref", contains, f"refs/heads/{part}"):
                return False
        return True

    async def has(self, repository: Path, heads: Mapping[str, str]) -> bool:
        """Return whether a repository has these commits.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
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
        """Set the refs of the newest snapshot of a copy to commits that are here already.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
        lines = [f"update {FETCHED}/{part} {heads[part]}\n" for part in PARTS]
        await self._run(repository, "update-ref", "--stdin", given="".join(lines).encode())

    async def unstage(self, repository: Path) -> None:
        """Give fetched snapshots of turns their own names; those that are here already stay.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
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
        text = await self._run(
            repository, "for-each-ref", "--format=%(objectname) %(refname)", *wanted
        )
        lines = (line.partition(" ") for line in text.decode().splitlines())
        return {ref: commit for commit, _, ref in lines}

    async def _run(
        self, repository: Path, *arguments: str, given: bytes = b"", onto: Path | None = None
    ) -> bytes:
        return await self._git.run(
            repository, *arguments, given=given, seconds=self._seconds, onto=onto
        )


def size_and_digest(file: Path) -> tuple[int, str]:
    """Return the size of a file and its SHA-256, in hexadecimal. Blocks."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return opened.tell(), digest
