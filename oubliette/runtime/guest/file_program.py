"""The files program in a container, and one operation after the other through its streams."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from oubliette import ids
from oubliette.errors import (
    DeadlineExceeded,
    InvalidParameter,
    OublietteError,
    ProtocolViolation,
    RuntimeFailure,
)
from oubliette.incontainer.files import frames
from oubliette.json_values import check_count
from oubliette.runtime.guest.messages import Exit, StartProcess
from oubliette.runtime.guest.process_stream import STDOUT, Output

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import Inside
    from oubliette.runtime.guest.control_link import ControlLink
    from oubliette.runtime.guest.process_stream import ProcessStream

GRACE_SECONDS: Final = 10.0  # beyond an operation's own limit, which the program holds
ACK_BYTES: Final = 1 << 20  # read before the guest may discard them
UNKNOWN: Final = 2  # exit code of a zipapp without this program
ALARM: Final = 14  # the signal that ends a program whose operation takes too long


class ProgramEnded(RuntimeFailure):
    """The files program has ended without an answer; `idle` if it had not read the request."""

    code = "files_program_ended"

    def __init__(self, message: str, *, hint: str, idle: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.idle = idle


class FileProgram:
    """One run of the files program; one task uses it at a time."""

    def __init__(self, link: ControlLink, inside: Inside, proc: str, stream: ProcessStream) -> None:
        self.inside = inside
        self.answered = False
        """Whether it has answered a request."""
        self._link = link
        self._proc = proc
        self._stream = stream
        self._frames = frames.FileFrames(check_count)
        self._sent = 0
        self._offsets = {1: 0, 2: 0}
        self._acked = 0

    @classmethod
    async def start(cls, link: ControlLink, inside: Inside) -> FileProgram:
        """Start it as the agents' user, as container_exec starts a command.

        Raises:
            CommandFailed: the guest cannot start it.
            LinkClosed: the link ended.
        """
        proc = ids.new_id(ids.PROCESS)
        start = StartProcess(
            proc=proc,
            argv=inside.program("files"),
            env=dict(inside.env),
            cwd="/",
            uid=inside.uid,
            gid=inside.uid,
        )
        try:
            await link.start(start)
            stream = await link.attach(proc)
        except BaseException:
            await asyncio.shield(_end(link, proc))
            raise
        return cls(link, inside, proc, stream)

    async def ask(
        self, fields: dict[str, Any], data: bytes, *, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """Have one operation carried out, and return the answer.

        Raises:
            ProgramEnded: the program has ended without an answer.
            DeadlineExceeded: the operation took longer than `seconds`, and was ended, or the
                container is paused.
            LinkClosed: the link ended; whether it was carried out is unknown.
            ProtocolViolation: what came is no answer.
        """
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                self._sent += 1
                request = frames.encode({**fields, "seconds": seconds}, data)
                await self._stream.write(self._sent, request)
                return await self._answer(seconds)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the container has not answered within {seconds + GRACE_SECONDS:g} s: it is"
                " paused, or it hangs",
                hint="let it go on (docker unpause, podman unpause), or end it with container_stop",
            ) from error

    async def _answer(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        while (item := await self._stream.read()) is not None:
            if isinstance(item, Exit):
                raise self._ended(item, seconds)
            if not isinstance(item, Output):
                continue
            self._offsets[item.stream] = item.offset + len(item.data)
            await self._acknowledge()
            if item.stream == STDOUT:
                try:
                    answers = self._frames.feed(item.data)
                except (frames.BadFrame, InvalidParameter) as error:
                    raise ProtocolViolation(f"the files program: {error}") from error
                if answers:
                    self.answered = True
                    return answers[0]
        raise self._ended(Exit(), seconds)

    def _ended(self, item: Exit, seconds: float) -> OublietteError:
        if item.signal == ALARM:
            return DeadlineExceeded(
                f"the operation on files took longer than {seconds:g} s and was ended",
                hint="do it in parts, or by container_exec",
            )
        if item.code == 0:
            return ProgramEnded(
                "the files program in the container ends at once", hint="try again", idle=True
            )
        if item.code == UNKNOWN and not self.answered:
            return RuntimeFailure(
                "this container was started by an earlier release, which had no files program",
                hint="container_stop, then try again",
            )
        return ProgramEnded(
            "the files program in the container was ended; whether the operation was carried out"
            " is unknown",
            hint="look at the file, then try again",
        )

    async def _acknowledge(self) -> None:
        read = self._offsets[1] + self._offsets[2]
        if read - self._acked > ACK_BYTES:
            self._acked = read
            await self._link.ack(self._proc, self._offsets[1], self._offsets[2])

    async def aclose(self) -> None:
        """Close its streams, end it and have the guest forget it."""
        try:
            await self._stream.aclose()
        finally:
            await _end(self._link, self._proc)


async def _end(link: ControlLink, proc: str) -> None:
    with contextlib.suppress(OublietteError, OSError):  # the link or the container has ended
        await link.end(proc)
