"""Requests for files of a workspace, carried out in the container one after the other.

One program in the container serves them all. It is started with the first one, and ended when none
has come for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from oubliette.actors.container.messages import (
    DeleteFile,
    FileRequest,
    ListFolder,
    ReadFile,
    WriteFile,
)
from oubliette.errors import OublietteError, RuntimeFailure, Unavailable
from oubliette.incontainer.files.frames import name_string
from oubliette.runtime.guest import LinkClosed, file_answers
from oubliette.runtime.guest.file_program import FileProgram, ProgramEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import msgspec

    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.kit import Deferred

LINK_SECONDS: Final = 30.0  # for the control link to be open
IDLE_SECONDS: Final = 10.0  # without a request, after which the program is ended
MOST_WAITING: Final = 64  # requests that wait for their turn


class FileRequests:
    """The requests of one container, and the job that carries them out.

    Args:
        guest: view of the control link.
        run: starts a job of the actor; its end is reported by `ended`.
    """

    def __init__(
        self, guest: GuestConnection, run: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._guest = guest
        self._run = run
        self._waiting: deque[tuple[FileRequest, Deferred]] = deque()
        self._more = asyncio.Event()
        self._running = False

    def add(self, request: FileRequest, answer: Deferred) -> None:
        """Carry out `request` when those before it are done, and answer it."""
        if len(self._waiting) >= MOST_WAITING:
            busy = f"{MOST_WAITING} operations on files of this container wait already"
            answer.set_error(Unavailable(busy, hint="try again"))
            return
        self._waiting.append((request, answer))
        self._more.set()
        if not self._running:
            self._running = True
            self._run(self._serve())

    def ended(self) -> None:
        """Note the end of the job; one that came in the meantime needs another."""
        self._running = False
        if self._waiting:
            self._running = True
            self._run(self._serve())

    def refuse_all(self, error: OublietteError) -> None:
        while self._waiting:
            self._waiting.popleft()[1].set_error(error)

    async def _serve(self) -> None:
        """Start the program and give it all requests, until none has come for a while."""
        try:
            program = await self._start()
        except OublietteError as error:
            self.refuse_all(error)
            return
        try:
            while await self._some_wait():
                if not await self._carry_out_next(program):
                    return
        finally:
            await asyncio.shield(program.aclose())

    async def _carry_out_next(self, program: FileProgram) -> bool:
        """Carry out the oldest request; return whether the program can take another one."""
        request, answer = self._waiting[0]
        if answer.done:  # its asker has given up
            self._waiting.popleft()
            return True
        try:
            answer.set(await _carry_out(program, request))
        except FileRefused as refused:
            answer.set_error(refused.error)
        except (ProgramEnded, LinkClosed) as ended:
            # One that it has not seen, or that changes nothing, is for the next program
            again = getattr(ended, "idle", False) or isinstance(request, ListFolder | ReadFile)
            if not (again and program.answered):
                answer.set_error(ended)
                self._waiting.popleft()
            return False
        except Exception as error:  # what the program does now is unknown
            answer.set_error(error)
            self._waiting.popleft()
            return False
        self._waiting.popleft()
        return True

    async def _start(self) -> FileProgram:
        link = await self._guest.wait(LINK_SECONDS)
        if self._guest.info is None:
            raise RuntimeFailure("the container is not known yet", hint="try again in a moment")
        return await FileProgram.start(link, self._guest.info.inside)

    async def _some_wait(self) -> bool:
        if self._waiting:
            return True
        self._more.clear()
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._more.wait()
        except TimeoutError:
            return bool(self._waiting)
        return True


class FileRefused(Exception):
    """The program could not do it, and is ready for the next request."""

    def __init__(self, error: OublietteError) -> None:
        super().__init__(str(error))
        self.error = error


async def _carry_out(program: FileProgram, request: FileRequest) -> msgspec.Struct:
    data = request.data if isinstance(request, WriteFile) else b""
    fields = {
        "root": program.inside.path(request.workspace),
        "path": name_string(request.path),
        **_options(request),
    }
    answer, content = await program.ask(fields, data, seconds=request.seconds)
    error = file_answers.refusal(answer, request.path.decode("utf-8", "replace"))
    if error is not None:
        raise FileRefused(error)
    if isinstance(request, ListFolder):
        return file_answers.folder_page(answer)
    if isinstance(request, ReadFile):
        return file_answers.file_range(answer, content)
    if isinstance(request, WriteFile):
        return file_answers.file_written(answer)
    return file_answers.files_deleted(answer)


def _options(request: FileRequest) -> dict[str, Any]:
    if isinstance(request, ListFolder):
        return {"verb": "list", "after": name_string(request.after), "limit": request.limit}
    if isinstance(request, ReadFile):
        return {"verb": "read", "offset": request.offset, "length": request.length}
    if isinstance(request, DeleteFile):
        return {"verb": "delete", "recursive": request.recursive}
    assert isinstance(request, WriteFile)
    names = ("folder", "expected", "executable", "upload", "offset", "final")
    return {"verb": "write", **{name: getattr(request, name) for name in names}}
