"""Limit on a project's disk usage: warns, then interrupts, then stops the containers.

No file system reports that a folder has grown, and quotas need a file system that has them and a
server that is root. So the folder is measured from time to time, while it has containers: at most
every `projects.check_seconds`, and so seldom that measuring takes at most a twentieth of the time.
An interrupt ends a turn, but neither a command of `container_exec` nor what has left its parents.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.container.messages import StopContainer
from oubliette.actors.session.messages import LimitAction, LimitNotice
from oubliette.errors import LimitExceeded
from oubliette.kit import Message
from oubliette.runtime.files.disk_usage import measure
from oubliette.runtime.long_work import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.runtime.files.disk_usage import DiskUsage

    After = Callable[[float, Message], object]
    AsMeasured = Callable[["Measured"], Message]
    AsFailed = Callable[[BaseException], Message]
    PipeToSelf = Callable[[Awaitable["Measured"], AsMeasured, AsFailed], object]

log = structlog.get_logger(__name__)

LIMIT: Final = "projects.max_bytes"
WARN_AT: Final = 0.8  # share of the limit
AGAIN_AT: Final = 0.05  # share of the limit by which it may grow after an interrupt
INTERRUPTS: Final = 2  # above the limit; when it grows after these, its containers are stopped
WALK_SECONDS: Final = 20.0  # for one measurement; twice as long after each incomplete one
REST: Final = 19.0  # pause until the next measurement, as a multiple of the last one's duration
RELAY_BYTES: Final = 1 << 20  # of files in `/mcp`, by all containers of a project
INCOMPLETE: Final = 6  # measurements in a row, the last of ten minutes, that count as too much
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB")


class MeasureNow(Message):
    """From the ProjectActor to itself: time for a measurement."""


class Measured(Message):
    """From the ProjectActor to itself: the disk usage of the project."""

    used: int
    relay: int = 0
    """Of it, in the folders of its containers' relays."""
    free: int = 1 << 62
    """Room on the disk of the home."""
    complete: bool
    seconds: float
    sessions: tuple[str, ...]
    """Sessions that are live now."""
    running: bool = False
    """Whether a turn of one of them runs."""
    stopped: bool = False
    """Whether its containers were stopped before it was measured."""


class MeasureFailed(Message):
    """From the ProjectActor to itself: the measurement failed."""

    reason: str


class DiskQuotaMonitor:
    """Part of a ProjectActor that watches its size; it has the same lifetime.

    `after` and `pipe_to_self` are those of the ProjectActor, which gets the messages above;
    `containers` returns its ContainerActors.
    """

    def __init__(
        self,
        context: ActorContext,
        project_id: str,
        after: After,
        pipe_to_self: PipeToSelf,
        containers: Callable[[], list[Ref]],
    ) -> None:
        self._after = after
        self._pipe_to_self = pipe_to_self
        self._containers = containers
        self._context = context
        self._id = project_id
        self._watching = False
        self._warned = False
        self._interrupted_at = 0
        """Bytes at the last interrupt; 0 before the first."""
        self._interrupts = 0
        self._full: str | None = None
        """Its size, for people, when it was last measured above the limit; None: it was below."""
        self._incomplete = 0
        """Measurements in a row that did not see all files, since the last interrupt for it."""
        self._relay_told = 0
        """Bytes of the relays' folders at the last interrupt for them."""
        self._free_told = 1 << 62
        """Room on the disk at the last interrupt for it."""

    def begin(self) -> None:
        """Start to measure, since a container is used, unless a measurement is under way."""
        if not self._watching and self._context.config.projects.max_bytes:
            self._watching = True
            self._after(self._context.config.projects.check_seconds, MeasureNow())

    def check_command(self) -> None:
        """Refuse a command above the limit, which an agent's turn may still make room below.

        Raises:
            LimitExceeded: names the limit.
        """
        if self._full is not None:
            raise LimitExceeded(
                f"{LIMIT}: {self._full}: no command is run",
                hint="remove files with file_delete or by an agent; it is measured every"
                f" {self._context.config.projects.check_seconds:g} s, a large one less often",
            )

    def measure(self, *, stop: Sequence[Ref] = ()) -> None:
        """Measure now, beside the mailbox, once these containers are stopped."""
        self._pipe_to_self(
            self._measure(stop), lambda measured: measured, lambda e: MeasureFailed(reason=repr(e))
        )

    async def _measure(self, stop: Sequence[Ref]) -> Measured:
        stops = [container.ask(StopContainer(force=True)) for container in stop]
        await asyncio.gather(*stops, return_exceptions=True)
        live = await self._context.reader.live_sessions(self._id)
        folders = self._context.folders
        tops = [folders.project(self._id), folders.session_homes(self._id)]
        relays: list[Path] = []
        for container in await self._context.reader.containers(self._id):
            tops.append(folders.spool(container.id))
            relays.append(Path(container.folder))
        began, over = time.monotonic(), threading.Event()
        seconds = WALK_SECONDS * 2**self._incomplete
        try:
            usage: DiskUsage = await in_own_thread(
                lambda: measure(tops, seconds=seconds, stopped=over.is_set)
            )
            relay: DiskUsage = await in_own_thread(
                lambda: measure(relays, seconds=WALK_SECONDS, stopped=over.is_set)
            )
        finally:
            over.set()  # with the actor, whose server does not wait for the thread
        return Measured(
            used=usage.bytes + relay.bytes,
            relay=relay.bytes,
            free=await asyncio.to_thread(_free, folders.home),
            complete=usage.complete and relay.complete,
            seconds=time.monotonic() - began,
            sessions=tuple(session.id for session in live),
            running=any(session.status == "running" for session in live),
            stopped=bool(stop),
        )

    def failed(self, message: MeasureFailed) -> None:
        log.warning("a project was not measured", project_id=self._id, reason=message.reason)
        self._after(self._context.config.projects.check_seconds, MeasureNow())

    def measured(self, message: Measured) -> None:
        """Act on the size, and schedule the next measurement while there are containers."""
        limit = self._context.config.projects.max_bytes
        self._see_all(message)
        self._see_relay(message)
        self._see_room(message)
        used = f"this project takes {_shown(message.used)} of {_shown(limit)}"
        self._full = used if message.used >= limit else None
        stop: list[Ref] = []
        if message.used >= limit:
            if message.stopped:
                # It grew until the stop. What is started since then, such as a file_delete, is not
                # to be stopped for that.
                self._interrupted_at = message.used
            elif (
                message.used >= self._interrupted_at + AGAIN_AT * limit or not self._interrupted_at
            ):
                stop = self._end_growth(message, used)
        else:
            self._interrupted_at = self._interrupts = 0
            if message.used >= WARN_AT * limit and not self._warned:
                self._tell(message, "warn", f"{used}; when all is taken, turns are interrupted")
        self._warned = message.used >= WARN_AT * limit
        if not self._containers():
            self._watching = self._warned = False
            self._interrupted_at = self._interrupts = self._incomplete = self._relay_told = 0
            return
        if stop:
            self.measure(stop=stop)
            return
        rest = max(self._context.config.projects.check_seconds, REST * message.seconds)
        self._after(rest, MeasureNow())

    def _end_growth(self, message: Measured, used: str) -> list[Ref]:
        """Interrupt the turns; return its containers if it grows without one or in spite of it."""
        first, self._interrupted_at = not self._interrupted_at, message.used
        if first or (message.running and self._interrupts < INTERRUPTS):
            self._interrupts += 1
            self._tell(
                message, "interrupt", f"{used}: its turns are interrupted; remove some files"
            )
            return []
        text = f"{used} and goes on growing: its containers are stopped; remove some files"
        self._tell(message, "interrupt", text)
        return self._containers()

    def _see_all(self, message: Measured) -> None:
        """Take a project that cannot be measured, however long it takes, for one above its limit.

        Otherwise files are free for who hides them, or makes more than can be counted. A large one
        on a slow disk has more time each time; what a build moves meanwhile is there the next time.
        """
        if message.complete:
            self._incomplete = 0
            return
        log.warning("a project could not be measured as a whole", project_id=self._id)
        self._incomplete += 1
        if self._incomplete == INCOMPLETE:
            self._incomplete = 0
            text = (
                f"not all files of this project can be counted ({_shown(message.used)} were): its"
                " turns are interrupted; remove some files, and make all folders readable"
            )
            self._tell(message, "interrupt", text)

    def _see_relay(self, message: Measured) -> None:
        """Interrupt who uses the folder of the relay for files.

        It may belong to the agents, and is in memory of the machine: it is for a socket.
        """
        if message.relay <= RELAY_BYTES:
            self._relay_told = 0
        elif message.relay > self._relay_told:
            self._relay_told = message.relay
            text = (
                f"/mcp has {_shown(message.relay)} of {_shown(RELAY_BYTES)}: turns are interrupted;"
                " remove all but relay.sock from it"
            )
            self._tell(message, "interrupt", text)

    def _see_room(self, message: Measured) -> None:
        """Interrupt while the disk has room for the server's own writes, which all need."""
        room = self._context.config.projects.keep_free_bytes
        if message.free >= room:
            self._free_told = 1 << 62
        elif message.free < (1 - AGAIN_AT) * self._free_told:
            self._free_told = message.free
            text = (
                f"the disk of the server's home has {_shown(message.free)} left"
                f" (projects.keep_free_bytes: {_shown(room)}): turns are interrupted; make room"
            )
            self._tell(message, "interrupt", text)

    def _tell(self, message: Measured, action: LimitAction, text: str) -> None:
        log.warning("the size of a project", project_id=self._id, used=message.used, action=action)
        notice = LimitNotice(limit=LIMIT, action=action, message=f"{LIMIT}: {text}")
        for session_id in message.sessions:
            session = self._context.session_registry.session(session_id)
            if session is not None and session.is_alive():
                session.tell(notice)


def _free(home: Path) -> int:
    status = os.statvfs(home)
    return status.f_bavail * status.f_frsize


def _shown(size: int) -> str:
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"
