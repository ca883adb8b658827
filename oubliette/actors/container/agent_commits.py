"""Fetch of an agent's own commits: `git upload-pack` in the container, and git of the server here.

The program runs as the agents' user, by the guest, as any command there. The server never opens the
repository of a workspace; it reads what comes out, into a quarantine.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette import ids
from oubliette.errors import Conflict, OublietteError, RuntimeFailure
from oubliette.runtime.guest import CommandFailed, Exit, Output, StartProcess
from oubliette.runtime.guest.process_stream import STDOUT
from oubliette.runtime.repositories.commit_quarantine import CommitQuarantine
from oubliette.runtime.snapshots.git_program import GitProgram

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.container.messages import FetchCommits
    from oubliette.kit import Deferred
    from oubliette.runtime.guest.control_link import ControlLink
    from oubliette.runtime.guest.process_stream import ProcessStream

LINK_SECONDS: Final = 30.0
"""Time for the control link to be open."""
ACK_BYTES: Final = 1 << 20
"""Bytes that are read before the guest may discard them."""
_KEPT: Final = 2000
"""Bytes of upload-pack's errors that are looked at."""
_NO_REPOSITORY: Final = re.compile(
    r"not a git repository|does not appear to be a git|not exist|dubious ownership"
)


class UploadPack:
    """The streams of upload-pack in a container."""

    def __init__(self, link: ControlLink, proc: str, stream: ProcessStream) -> None:
        self._link = link
        self._proc = proc
        self._stream = stream
        self._sent = 0
        self._offsets = {1: 0, 2: 0}
        self._acked = 0
        self.errors = b""
        self.ended: Exit | None = None

    async def read(self) -> bytes:
        while self.ended is None and (item := await self._stream.read()) is not None:
            if isinstance(item, Exit):
                self.ended = item
            elif isinstance(item, Output):
                self._offsets[item.stream] = item.offset + len(item.data)
                await self._acknowledge()
                if item.stream == STDOUT and item.data:
                    return item.data
                self.errors = (self.errors + item.data)[-_KEPT:]
        return b""

    async def _acknowledge(self) -> None:
        read = self._offsets[1] + self._offsets[2]
        if read - self._acked > ACK_BYTES:
            self._acked = read
            await self._link.ack(self._proc, self._offsets[1], self._offsets[2])

    async def write(self, data: bytes) -> None:
        self._sent += 1
        await self._stream.write(self._sent, data)

    async def write_eof(self) -> None:
        self._sent += 1
        with contextlib.suppress(OublietteError):  # it has ended before
            await self._stream.write_eof(self._sent)


async def fetch_commits(guest: GuestConnection, request: FetchCommits, answer: Deferred) -> None:
    """Fetch the commits of a workspace into the project's repository; answer with the last one.

    The answer is an error with a remedy if that is not possible; nothing has changed then.
    """
    try:
        link = await guest.wait(LINK_SECONDS)
        git = GitProgram(request.git)
        async with CommitQuarantine(Path(request.repository), git, request.base) as quarantine:
            await _fetched(guest, link, request, quarantine)
            answer.set(await quarantine.keep(request.workspace_id))
    except Exception as error:
        answer.set_error(error)


async def _fetched(
    guest: GuestConnection, link: ControlLink, request: FetchCommits, quarantine: CommitQuarantine
) -> None:
    if guest.info is None:
        raise RuntimeFailure("the container is not known yet", hint="try again in a moment")
    inside, proc = guest.info.inside, ids.new_id(ids.PROCESS)
    folder = inside.path(request.workspace)
    try:
        await link.start(
            StartProcess(
                proc=proc,
                argv=("git", "upload-pack", "--strict", "--timeout=60", f"{folder}/.git"),
                env={**inside.env, "HOME": inside.path("/tmp")},  # noqa: S108 -- inside
                cwd=folder,
                uid=inside.uid,
                gid=inside.uid,
                deadline_seconds=request.seconds,
            )
        )
        async with await link.attach(proc) as stream:
            program = UploadPack(link, proc, stream)
            try:
                await quarantine.fetch(program, most=request.most, seconds=request.seconds)
            except RuntimeFailure as error:
                raise _explained(program.errors.decode(errors="replace"), error) from error
    except CommandFailed as error:
        if error.kind != "not_found":
            raise
        raise Conflict(
            "git is not installed in the project's container, where the agent's commits are read",
            hint='install git in its image, or use commits="turns", which takes the files',
        ) from error
    finally:
        await asyncio.shield(_end(link, proc))


def _explained(said: str, error: RuntimeFailure) -> OublietteError:
    if _NO_REPOSITORY.search(said):
        return Conflict(
            "the workspace has no repository of git any more: its .git is gone, or not the agent's",
            hint='use commits="turns", which takes the files',
        )
    return error


async def _end(link: ControlLink, proc: str) -> None:
    with contextlib.suppress(OublietteError, OSError):
        await link.end(proc)
