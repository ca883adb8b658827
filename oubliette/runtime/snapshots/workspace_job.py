"""WorkspaceJobs, which has workspaces read and written by processes of their own."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from oubliette.errors import DeadlineExceeded, LimitExceeded, RuntimeFailure
from oubliette.runtime.long_work import FairSlots, works_for

if TYPE_CHECKING:
    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.snapshot_records import SnapshotLimits

GRACE_SECONDS: Final = 10.0
"""Time of the server for its own part, beside that of the workspace."""
END_SECONDS: Final = 5.0
_ROOT: Final = Path(__file__).resolve().parents[3]
"""The folder that has the package."""
_PROGRAM: Final = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r});"
    "from oubliette.runtime.snapshots.workspace.job_server import main; main()"
)


class WorkspaceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the program that reads workspaces, which runs with the rights of agents."""

    status: Literal["taken", "unchanged", "restored", "late", "many", "failed"]
    reason: str = ""
    heads: dict[Literal["files", "rest"], str] = {}
    table: bool = False
    """Whether what it has found was written for the next snapshot; otherwise that is as it was."""
    entries: int = 0
    left_out: int = 0
    left_out_shown: dict[str, str] = {}
    torn: bool = False
    written: int = 0
    removed: int = 0
    missing: dict[str, str] = {}
    missing_count: int = 0


class _End(msgspec.Struct, frozen=True):
    """End of a job's process, after its answer if it gave one."""

    code: int
    errors: str


class WorkspaceJobs:
    """Jobs on workspaces, each done by a process with the rights of the workspace's owner.

    The process that forks them is started with the first job and belongs to this object.

    Args:
        at_once: Jobs that run at a time; others wait.
        of_principal: Those for one principal, for which the current task works.
        of_project: Those of one project, for all principals together.
    """

    def __init__(self, at_once: int = 1, of_principal: int = 1, of_project: int = 1) -> None:
        self._slots = FairSlots(at_once, of_project, of_principal)
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None

    async def do(
        self,
        workspace: Path,
        job: dict[str, Any],
        repository: Path,
        git: GitProgram,
        limits: SnapshotLimits,
    ) -> WorkspaceAnswer:
        """Have a workspace read or written.

        Args:
            workspace: Its folder.
            job: The work, beside the other arguments.
            repository: Folder of its repository, among those of its project.
            git: The program.
            limits: Time and size.

        Raises:
            DeadlineExceeded: it takes longer than the limit.
            LimitExceeded: the workspace has too many entries.
            RuntimeFailure: the workspace or the repository cannot be used.
        """
        whole = {
            **job,
            "git": [git.path],
            "environment": git.environment(repository),
            "repository": str(repository),
            "workspace": str(workspace),
            "seconds": limits.seconds,
            "max_entries": limits.max_entries,
        }
        async with self._slots.of(repository.parent.name, works_for.get()):
            try:
                async with asyncio.timeout(limits.seconds + GRACE_SECONDS):
                    lines = await self._run(msgspec.json.encode(whole) + b"\n")
            except TimeoutError:
                raise _too_long(limits) from None
        return _checked(lines, limits)

    async def aclose(self) -> None:
        """End the process, and the jobs that it has under way."""
        process, self._process = self._process, None
        if self._control is not None:
            self._control.close()
            self._control = None
        if process is not None:
            try:
                async with asyncio.timeout(END_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _run(self, job: bytes) -> list[bytes]:
        """Return the lines of a job's answer: its own, and how its process ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._hand_over(theirs)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        try:
            writer.write(job)
            return (await reader.read()).splitlines()
        except OSError as error:
            raise RuntimeFailure(f"the workspace's reader: {error.strerror}") from error
        finally:
            writer.transport.abort()  # the job, if it still runs, ends with its socket

    async def _hand_over(self, link: socket.socket) -> None:
        async with self._starting:
            for attempt in range(2):
                control = self._control or await self._start()
                try:
                    socket.send_fds(control, [b"j"], [link.fileno()])
                except OSError as error:  # it was killed: another takes its place
                    await self.aclose()
                    if attempt:
                        why = f"the workspace's reader cannot be started: {error.strerror}"
                        raise RuntimeFailure(why) from error
                else:
                    return

    async def _start(self) -> socket.socket:
        control, theirs = socket.socketpair()
        control.setblocking(False)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", "-c", _PROGRAM,
                    stdin=theirs.fileno(), stdout=asyncio.subprocess.DEVNULL, cwd="/",
                    env={"LC_ALL": "C"}, start_new_session=True,
                )  # fmt: skip
        except BaseException as error:
            control.close()
            if isinstance(error, OSError):
                why = f"{sys.executable} cannot be started: {error.strerror}"
                raise RuntimeFailure(why) from error
            raise
        self._control = control
        return control


def _too_long(limits: SnapshotLimits) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the workspace takes longer than {limits.seconds:g} s", hint="raise snapshots.seconds"
    )


def _checked(lines: list[bytes], limits: SnapshotLimits) -> WorkspaceAnswer:
    try:
        end = msgspec.json.decode(lines[-1], type=_End) if lines else _End(-1, "its process ended")
        if len(lines) != 2:  # its answer, and how its process ended
            raise RuntimeFailure(
                f"the workspace's reader failed: {end.errors or f'it ended with {end.code}'}"
            )
        answer = msgspec.json.decode(lines[0], type=WorkspaceAnswer)
    except msgspec.DecodeError as error:
        raise RuntimeFailure(f"the workspace's reader failed: {error}") from None
    if answer.status == "late":
        raise _too_long(limits)
    if answer.status == "many":
        raise LimitExceeded(
            f"the workspace has more than {limits.max_entries} entries",
            hint="raise snapshots.max_entries",
        )
    if answer.status == "failed":
        raise RuntimeFailure(f"the workspace: {answer.reason}; {end.errors}".rstrip("; "))
    return answer
