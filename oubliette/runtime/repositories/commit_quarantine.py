"""CommitQuarantine, where commits of an agent come first: a repository that has nothing but them.

They come out of a container as the bytes of `git upload-pack`, which runs there. All of that is
an agent's: size and time are limited, git checks each object, and HEAD alone is asked for. Only
`keep` gives the project's repository what has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
from typing import TYPE_CHECKING, Final, Protocol

from oubliette.errors import Conflict, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.runtime.repositories.git_errors import RepositoryTooLarge
from oubliette.runtime.repositories.project_repository import SECONDS
from oubliette.runtime.repositories.workspace_clone import NEW
from oubliette.runtime.snapshots.git_program import last_of, make_repository, streaming

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from oubliette.runtime.snapshots.git_program import GitProgram

AGENT: Final = "refs/oubliette/agent"
"""Refs of the project's repository, by workspace: the last commit that came from there."""
_HEAD: Final = "refs/heads/agent"
_BASE: Final = "refs/heads/base"
_BLOCK: Final = 1 << 16
_CHECKS: Final = (
    *("-c", "fetch.fsckObjects=true", "-c", "transfer.fsckObjects=true"),
    *("-c", "fetch.unpackLimit=1", "-c", "core.bigFileThreshold=8m"),
    *("-c", "fetch.recurseSubmodules=false", "-c", "protocol.version=0"),
)
"""Objects stay one pack, in which large files are not held in memory."""


class ByteChannel(Protocol):
    """The streams of a program that runs elsewhere."""

    async def read(self) -> bytes:
        """Return what it has written next; nothing at its end."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...


class CommitQuarantine:
    """A place for the commits of one workspace, as long as its block runs."""

    def __init__(self, repository: Path, git: GitProgram, base: str) -> None:
        self.folder = repository.parent / f".{secrets.token_hex(16)}{NEW}"
        self._repository = repository
        self._git = git
        self._base = base

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._make)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _make(self) -> None:
        make_repository(self.folder, durable=False)
        objects = self.folder / "objects" / "info" / "alternates"
        objects.write_text(f"{self._repository / 'objects'}\n")
        (self.folder / "packed-refs").write_text(f"{self._base} {_BASE}\n")
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self._repository / "shallow", self.folder / "shallow")

    async def fetch(self, channel: ByteChannel, *, most: int, seconds: float) -> None:
        """Fetch what HEAD is of the repository in which upload-pack runs.

        Args:
            channel: Streams of upload-pack.
            most: Maximum bytes that may come; 0: no limit.
            seconds: Time for all of it.

        Raises:
            RepositoryTooLarge: more comes.
            Conflict: there is no such commit.
            RuntimeFailure: git refuses what comes, or it broke off.
            DeadlineExceeded: it takes too long.
        """
        ours, theirs = socket.socketpair()
        environment = self._git.environment(self.folder) | {"GIT_ALLOW_PROTOCOL": "fd"}
        options = ("--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--quiet")
        address = f"fd::{theirs.fileno()}"
        command = [self._git.path, *_CHECKS, "fetch", *options, address, f"+HEAD:{_HEAD}"]
        with ours, theirs:
            ours.setblocking(False)
            async with streaming(
                command,
                environment=environment,
                folder=self.folder,
                seconds=seconds,
                pass_fds=(theirs.fileno(),),
            ) as process:
                theirs.close()
                assert process.stderr is not None
                errors, _ = await asyncio.gather(
                    last_of(process.stderr), _carried(ours, channel, most)
                )
                code = await process.wait()
        if code != 0:
            raise _refused(errors.decode(errors="replace").strip())

    async def keep(self, workspace_id: str) -> str:
        """Give the project's repository what has come, under a ref; return its commit.

        Raises:
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
        found = await self._git.run(
            self.folder, "for-each-ref", "--format=%(objectname)", _HEAD, seconds=SECONDS
        )
        commit = found.decode().strip()
        failpoint("agent_commits.fetched")
        await asyncio.to_thread(self._place_packs)
        failpoint("agent_commits.stored")
        ref = f"{AGENT}/{workspace_id}"
        await self._git.run(self._repository, "update-ref", ref, commit, seconds=SECONDS)
        return commit

    def _place_packs(self) -> None:
        packs = self._repository / "objects" / "pack"
        packs.mkdir(mode=0o700, exist_ok=True)
        for pack in (self.folder / "objects" / "pack").glob("*.pack"):
            for ending in (".pack", ".idx"):  # without an index, git does not look at a pack
                file = pack.with_suffix(ending)
                file.replace(packs / file.name)


async def _carried(ours: socket.socket, channel: ByteChannel, most: int) -> None:
    """Carry bytes between git and upload-pack, until both have ended.

    Raises:
        RepositoryTooLarge: more comes than may.
    """
    loop = asyncio.get_running_loop()

    async def to_there() -> None:
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(ours, _BLOCK):
                await channel.write(data)
        await channel.write_eof()

    sending = asyncio.create_task(to_there())
    try:
        came = 0
        while data := await channel.read():
            came += len(data)
            if most and came > most:
                raise RepositoryTooLarge(
                    f"the agent's commits have more than {most} bytes",
                    hint='raise repositories.max_bytes, or merge with commits="turns"',
                )
            with contextlib.suppress(ConnectionError):  # the reason is in the errors of git
                await loop.sock_sendall(ours, data)
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def _refused(said: str) -> Conflict | RuntimeFailure:
    if "couldn't find remote ref HEAD" in said:
        return Conflict(
            "HEAD of the repository in the workspace names no commit",
            hint='merge with commits="turns", which takes the files',
        )
    if "unpack" in said or "fsck" in said or "index-pack" in said or "object" in said:
        return RuntimeFailure(
            f"git refuses the agent's commits: {said}",
            hint='merge with commits="turns", which takes the files',
        )
    return RuntimeFailure(
        f"the agent's commits cannot be read: {said or 'upload-pack ended at once'}",
        hint='git status in the workspace shows more; commits="turns" takes the files',
    )
