"""Run one command in a container for a person or a tool, through the guest's protocol.

The guest holds the deadline, so the command and its descendants are ended even if this server is
not there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from oubliette import ids
from oubliette.contract.project import CommandResult
from oubliette.errors import DeadlineExceeded, OublietteError, RuntimeFailure
from oubliette.runtime.guest import Exit, Output, StartProcess
from oubliette.runtime.guest.control_link import REQUEST_TIMEOUT

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.container.messages import RunCommand
    from oubliette.kit import Deferred
    from oubliette.runtime.guest.control_link import ControlLink

LINK_SECONDS: Final = 30.0  # for the control link to be open
GRACE_SECONDS: Final = 10.0  # beyond the command's own deadline, which the guest holds
STUCK_SECONDS: Final = 3600.0  # for a paused guest to pass the signal on
KEPT_BYTES: Final = 128 * 1024  # of the beginning, and as much of the end, of each stream
# read before the guest gets the acknowledgement with which it may discard them
ACK_BYTES: Final = 1 << 20


class Kept:
    """The beginning and the end of a stream, and the number of bytes left out between them."""

    def __init__(self) -> None:
        self.size = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        room = KEPT_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > KEPT_BYTES:
            del self._tail[:-KEPT_BYTES]

    @property
    def left_out(self) -> int:
        """Bytes between the two parts."""
        return self.size - len(self._head) - len(self._tail)

    def text(self) -> str:
        """Return both parts, and between them the number of bytes that is missing."""
        if not self.left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n[… {self.left_out} bytes left out …]\n{tail}"


async def run_command(guest: GuestConnection, request: RunCommand, answer: Deferred) -> None:
    """Run a command to its end in the container and answer `request` with its CommandResult.

    The answer is an error if the command cannot be started (CommandFailed names the program or the
    folder), if there is no guest (ContainerLost), and if the guest has not reported its end
    `GRACE_SECONDS` after the command's own deadline (DeadlineExceeded). A command whose asker no
    longer waits is ended: its client has cancelled it, or has no valid key any more.
    """
    task = asyncio.current_task()
    assert task is not None
    if answer.asked:
        answer.when_gone(task.cancel)
    proc = ids.new_id(ids.PROCESS)
    limit = request.timeout_seconds + GRACE_SECONDS
    until = asyncio.get_running_loop().time() + limit
    try:
        link = await guest.wait(min(LINK_SECONDS, limit))
        try:
            async with asyncio.timeout_at(until):
                result = await _run(guest, link, proc, request)
        except TimeoutError:
            answer.set_error(_stuck(limit))
            # A paused guest reads this when it continues, right after what it has not read yet.
            await _end(link, proc, STUCK_SECONDS)
            return
        except BaseException:
            await asyncio.shield(_end(link, proc))
            raise
        await asyncio.shield(_end(link, proc))
        answer.set(result)
    except Exception as error:
        answer.set_error(error)


def _stuck(limit: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the container has not said within {limit:g} s how the command ended, which is"
        f" {GRACE_SECONDS:g} s beyond the command's own deadline: it is paused, or it hangs",
        hint="let it go on (docker unpause, podman unpause), whereupon what is left of the command"
        " is killed, or end it with container_stop and force",
    )


async def _end(link: ControlLink, proc: str, timeout: float = REQUEST_TIMEOUT) -> None:
    with contextlib.suppress(OublietteError, OSError):
        await link.end(proc, timeout=timeout)


async def _run(
    guest: GuestConnection, link: ControlLink, proc: str, request: RunCommand
) -> CommandResult:
    if guest.info is None:
        raise RuntimeFailure("the container is not known yet", hint="try again in a moment")
    inside = guest.info.inside
    began = time.monotonic()
    await link.start(
        StartProcess(
            proc=proc,
            argv=request.argv,
            env={
                **inside.env,
                "HOME": inside.path("/tmp"),  # noqa: S108 -- inside
                "OUBLIETTE_WORKSPACE": inside.path(request.workspace),
                **request.env,
            },
            cwd=inside.path(request.working_dir),
            uid=inside.uid,
            gid=inside.uid,
            stdin=False,
            deadline_seconds=request.timeout_seconds,
        )
    )
    out, err, ended = await _read(link, proc)
    return CommandResult(
        exit_code=ended.status if ended.status is not None else -1,
        stdout=out.text(),
        stderr=err.text(),
        truncated=bool(out.left_out or err.left_out),
        timed_out=time.monotonic() - began >= request.timeout_seconds,
    )


async def _read(link: ControlLink, proc: str) -> tuple[Kept, Kept, Exit]:
    kept = {1: Kept(), 2: Kept()}
    ended = Exit()
    acked = 0
    async with await link.attach(proc) as stream:
        async for item in stream:
            if isinstance(item, Output):
                kept[item.stream].add(item.data)
                if kept[1].size + kept[2].size - acked > ACK_BYTES:
                    acked = kept[1].size + kept[2].size
                    await link.ack(proc, kept[1].size, kept[2].size)
            elif isinstance(item, Exit):
                ended = item
    return kept[1], kept[2], ended
