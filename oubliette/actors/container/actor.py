"""Actor of one container: start on demand, leases, idle stop, adoption, loss."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from oubliette.actors.container.adoption import choose, examine, holders_of, records_of
from oubliette.actors.container.agent_commits import fetch_commits
from oubliette.actors.container.exec import run_command
from oubliette.actors.container.file_requests import FileRequests
from oubliette.actors.container.jobs import (
    AdoptAgain,
    Answered,
    ContainerEnded,
    ContainerStarted,
    FilesIdle,
    IdleStop,
    Inspected,
    Relayed,
    Removed,
    RemovePending,
    RoomTaken,
    StartFailed,
    Stopped,
    Unused,
    start_failed,
)
from oubliette.actors.container.lifecycle import Lifecycle
from oubliette.actors.container.memory_queue import MemoryQueue
from oubliette.actors.container.messages import (
    Acquire,
    ContainerIsLost,
    ContainerIsUp,
    DeleteFile,
    FetchCommits,
    GetContainer,
    GetContainerInfo,
    GetMemoryRoom,
    GetStages,
    GetUnused,
    GuestConnected,
    GuestGone,
    ListFolder,
    LogText,
    ReadFile,
    ReadLogs,
    Release,
    RunCommand,
    SocketStarted,
    StageChanged,
    StopContainer,
    StoreImage,
    UnitUnused,
    UseProject,
    WriteFile,
)
from oubliette.actors.container.removal import ContainerRemoval
from oubliette.actors.container.spec_builder import ContainerSpecBuilder
from oubliette.actors.container.start import ContainerStarter
from oubliette.actors.container.start_stages import (
    adoption_of,
    link_of,
    memory_of,
    start_of,
)
from oubliette.actors.session.waits import ContainerStartProgress, GetStart
from oubliette.actors.store.outages import once_back
from oubliette.errors import Conflict, ContainerLost, NotFound, OublietteError, RuntimeFailure
from oubliette.kit import Actor, handles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.container.lease_memory import LeaseMemory
    from oubliette.actors.container.lifecycle import State
    from oubliette.actors.container.messages import ContainerKey
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Deferred, Ref
    from oubliette.kit.timers import ActorTimer
    from oubliette.records import Container, Project, Session
    from oubliette.runtime.containers.base import ContainerInfo, ImageCommits

log = structlog.get_logger(__name__)

GONE_REPORTS: Final = 3  # times that its guest may be gone while the engine reports that it runs
STOP_GRACE: Final = 4.0  # seconds from TERM to KILL
UNUSED_SECONDS: Final = 10.0
"""Seconds after which an unused unit ends; fewer if idle containers are stopped sooner."""


class ContainerActor(Actor):
    """Actor of the one container of a ContainerKey."""

    def __init__(
        self,
        context: ActorContext,
        guest: GuestConnection,
        socket: Ref,
        memory: LeaseMemory,
        *,
        project: Project,
        key: ContainerKey,
    ) -> None:
        super().__init__()
        self._context = context
        self._guest = guest
        self._socket = socket
        self._memory = memory
        self._waits = MemoryQueue(memory.room, self, self._tell_session)
        self._info: ContainerInfo | None = None
        self._project = project
        self._key = key
        self._spec_builder = ContainerSpecBuilder(context, project, key)
        self._removal = ContainerRemoval(context, self)
        self._starter = ContainerStarter(
            context, self._spec_builder, self._removal, self._tell_sessions
        )
        self._files = FileRequests(guest, self._use_files)
        self._record: Container | None = None
        self._life = Lifecycle()
        self._outdated = False
        """Whether it was made with other settings, and is kept for the sessions that hold it.
        """
        self._why_lost: str | None = None
        self._waiting: list[Deferred] = []
        self._stop_answers: list[Deferred] = []
        self._idle_timer: ActorTimer | None = None
        self._unused_timer: ActorTimer | None = None
        self._stages: dict[str, float] = {}
        self._failing_since: float | None = None
        """Wall second since which the engine does not report its containers."""
        self._gone_reports = 0

    @property
    def _state(self) -> State:
        return self._life.state

    # ------------------------------------------------------------------ what is there

    async def on_start(self) -> None:
        """Adopt the container of an earlier server, if it still runs."""
        if self._memory.leases:
            self._memory.keep({session.id for session in await self._live_sessions()})
        await self._adopt()

    async def _live_sessions(self) -> list[Session]:
        read, workspace_id = self._context.reader.live_sessions, self._key.workspace_id
        return await once_back(lambda: read(self._project.id, workspace_id=workspace_id))

    async def _adopt(self) -> None:
        """Keep the one usable container and remove the others, once the engine lists them."""
        read = self._context.reader.containers
        stored = await once_back(lambda: read(self._project.id))
        records = records_of(stored, self._project.id, self._key)
        holders = holders_of(await self._live_sessions())
        try:
            examined = await examine(self._context.runtime, records)
        except OublietteError as error:
            self._adopt_later(error)
            return
        current = self._spec_builder.is_current  # which reads the settings of all workspaces
        adoption = await asyncio.to_thread(choose, examined, holders, current)
        for record in adoption.forgotten:
            await self._removal.forget(record)
        for record in adoption.removed:
            self._removal.expect(record)
        self._failing_since = None
        if (kept := adoption.kept) is None:
            self._life.on("examined")
            self._tell_lost("container lost: it did not outlive the server")
        else:
            self._outdated = kept.outdated
            self._memory.adopt(kept.leases)
            self._up(kept.record, kept.info)
        await self._removal.clear()
        self._answer_waiting()
        self._consider_idle()
        self._begin_if_wanted()
        self._consider_unused()

    def _adopt_later(self, error: OublietteError) -> None:
        log.warning("cannot look at containers", project_id=self._project.id, reason=str(error))
        self._life.on("engine_away")
        self._failing_since = self._failing_since or self._context.clock.time()
        self.after(self._removal.failures.next_delay(), AdoptAgain())

    @handles(AdoptAgain)
    async def _adopt_again(self, _: AdoptAgain) -> None:
        if self._state == "adopting":
            await self._adopt()

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        """Refuse the waiting askers; the container itself runs on, a successor adopts it."""
        del error
        if reason == "failed":
            return  # they get ActorDead, and ask the successor
        for answer in self._waiting:
            answer.set_error(ContainerLost("the container's actor ended"))
        self._files.refuse_all(ContainerLost("the container's actor ended"))

    # ------------------------------------------------------------------ leases

    @handles(Acquire)
    def _acquire(self, message: Acquire) -> str | None:
        session_id, need = message.session_id, message.memory_mb
        has_memory = self._memory.hold(session_id, need, starts=message.start)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not message.start:
            return self._record.id if self._record is not None else None
        answer = self.defer()
        if has_memory:
            self._provide(session_id, answer)
        else:
            self._waits.begin(session_id, need, answer)
        return None

    @handles(RoomTaken)
    def _room_taken(self, message: RoomTaken) -> None:
        if (answer := self._waits.taken(message)) is not None:
            self._provide(message.session_id, answer)

    def _provide(self, session_id: str, answer: Deferred) -> None:
        """Answer with the id of the container, once it is up."""
        if self._state == "up" and self._record is not None:
            if not self._outdated or self._memory.held_by_others(session_id):
                answer.set(self._record.id)
                return
            # it has no other session: the next container gets the current settings
            self._begin_stop()
        self._waiting.append(answer)
        self._begin_if_wanted()

    @handles(Release)
    def _release(self, message: Release) -> None:
        self._waits.leave(message.session_id)
        self._memory.give_back(message.session_id)
        if not message.ending:
            self._consider_idle()
            self._consider_unused()

    @handles(GetMemoryRoom)
    def _get_room(self, message: GetMemoryRoom) -> int | None:
        return self._memory.room.fits(message.memory_mb)

    def _consider_idle(self) -> None:
        if self._memory.leases or self._state != "up":
            return
        if self._outdated:
            self._begin_stop()
        elif self._idle_timer is None:
            after = self._context.config.containers.idle_stop_seconds
            self._idle_timer = self.after(after, IdleStop())

    @handles(IdleStop)
    def _idle_stop(self, _: IdleStop) -> None:
        self._idle_timer = None
        if not self._memory.leases and self._state == "up":
            self._begin_stop()

    # ------------------------------------------------------------------ no use at all

    @property
    def _unused(self) -> bool:
        used = self._memory.leases or self._waiting or self._stop_answers
        return self._state == "down" and not used and self._removal.idle

    @handles(GetUnused)
    def _get_unused(self, _: GetUnused) -> bool:
        return self._unused

    def _consider_unused(self) -> None:
        """Report, after a while, that the actors of this container may end."""
        if self._unused and self._unused_timer is None:
            after = min(UNUSED_SECONDS, self._context.config.containers.idle_stop_seconds)
            self._unused_timer = self.after(max(1.0, after), Unused())

    @handles(Unused)
    def _report_unused(self, _: Unused) -> None:
        self._unused_timer = None
        supervisor = self.system.lookup(self.name.rpartition("/")[0])
        if self._unused and supervisor is not None:
            supervisor.tell(UnitUnused(label=self._key.label))

    # ------------------------------------------------------------------ start

    def _begin_if_wanted(self) -> None:
        if not self._waiting or self._state != "down":
            return
        self._life.on("wanted")
        self.pipe_to_self(self._starter.run(), lambda started: started, start_failed)

    @handles(ContainerStarted)
    def _started(self, message: ContainerStarted) -> None:
        self._stages = message.seconds
        self._up(message.record, message.info, relay=True)

    def _up(self, record: Container, info: ContainerInfo, *, relay: bool = False) -> None:
        """Record that it runs; with `relay`, askers wait until its guest proves its identity."""
        self._record = record
        self._life.on("started" if relay else "adopted")
        self._gone_reports = 0
        self._removal.failures.reset()
        self._info = info
        self._socket.tell(ContainerIsUp(container_id=record.id, key=record.host_key, info=info))
        self.pipe_to_self(
            self._context.runtime.watch(record.id),
            lambda ended: ContainerEnded(container_id=ended.id, exit_code=ended.exit_code),
            lambda _: ContainerEnded(container_id=record.id),
        )
        if relay:
            self.pipe_to_self(
                self._starter.wait_for_guest(info, self._stages),
                lambda relayed: relayed,
                lambda error: start_failed(error, record.id),
            )

    @handles(GuestConnected)
    def _guest_connected(self, message: GuestConnected) -> None:
        if self._record is not None and self._record.id == message.container_id:
            self._starter.proved()

    def _tell_lost(self, reason: str) -> None:
        """Report the loss to the actors that use the link, by its owner."""
        self._starter.proved(reason)
        self._why_lost = reason
        self._socket.tell(ContainerIsLost(reason=reason))

    @handles(Relayed)
    def _relayed(self, message: Relayed) -> None:
        if self._record is None or self._record.id != message.container_id:
            return
        self._stages = message.seconds
        if self._state == "relay":
            self._life.on("relayed")
            self._outdated = False
        self._answer_waiting()
        self._consider_idle()

    def _answer_waiting(self) -> None:
        if self._state != "up" or self._record is None:
            return
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.set(self._record.id)

    @handles(StartFailed)
    def _start_failed(self, message: StartFailed) -> None:
        if not message.container_id:
            self._life.on("start_failed")
            self._fail_waiting(message.reason, message.hint)
            self._consider_unused()
        elif self._record is not None and self._record.id == message.container_id:
            self._give_up(self._record, message.reason, message.hint)

    def _fail_waiting(self, reason: str, hint: str | None) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.set_error(RuntimeFailure(reason, hint=hint))

    def _tell_sessions(self, stage: StageChanged) -> None:
        """Report a stage to the sessions that hold it; called from a job, changes nothing."""
        for lease in list(self._memory.leases):
            self._tell_session(lease, stage)

    def _tell_session(self, session_id: str, stage: StageChanged) -> None:
        session = self._context.session_registry.session(session_id)
        if session is not None and session.is_alive():
            session.tell(stage)

    @handles(SocketStarted)
    def _socket_started(self, _: SocketStarted) -> None:
        record, info = self._record, self._info
        if record is not None and info is not None and self._life.runs:
            up = ContainerIsUp(container_id=record.id, key=record.host_key, info=info)
            self._socket.tell(up)
        elif self._why_lost is not None:
            self._socket.tell(ContainerIsLost(reason=self._why_lost))

    # ------------------------------------------------------------------ end

    @handles(ContainerEnded)
    def _ended(self, message: ContainerEnded) -> None:
        record = self._record
        if record is None or record.id != message.container_id:
            return
        code = "" if message.exit_code is None else f" (exit code {message.exit_code})"
        self._give_up(record, f"container lost: it ended{code}")

    def _give_up(self, record: Container, reason: str, hint: str | None = None) -> None:
        """Treat the container as lost: notify its sessions, remove it from the engine."""
        before, self._record = self._state, None
        self._life.on("lost")
        self._removal.expect(record)
        self._tell_lost(reason)
        if before == "stopping":
            return  # the stop removes it
        self._removal.begin(record)
        if before == "relay":  # they wait for this very start
            self._fail_waiting(reason, hint)

    @handles(Removed)
    def _removed(self, message: Removed) -> None:
        self._removal.ended(message)
        self._consider_unused()

    @handles(RemovePending)
    def _remove_pending(self, _: RemovePending) -> None:
        self._removal.again()

    @handles(GuestGone)
    def _guest_gone(self, message: GuestGone) -> None:
        record = self._record
        if record is None or record.id != message.container_id:
            return
        if not self._life.runs:
            return
        if message.unusable:
            self._give_up(record, f"container lost: {message.reason}")
            return
        self.pipe_to_self(
            self._context.runtime.inspect(record.id),
            lambda info: Inspected(
                container_id=record.id, running=info.state == "running", reason=message.reason
            ),
            lambda error: Inspected(
                container_id=record.id, running=False, error=str(error), reason=message.reason
            ),
        )

    @handles(Inspected)
    def _inspected(self, message: Inspected) -> None:
        record = self._record
        if record is None or record.id != message.container_id or self._state == "stopping":
            return
        self._gone_reports += 1
        if message.running and self._gone_reports < GONE_REPORTS:
            return  # its end is about to be reported, or the guest is about to listen again
        why = message.error or ("it runs" if message.running else "it has ended")
        self._give_up(record, f"container lost: {message.reason}; of the container is known: {why}")

    @handles(StopContainer)
    def _stop_container(self, message: StopContainer) -> None:
        leases = self._memory.leases
        if leases and not message.force:
            raise Conflict(
                f"{len(leases)} sessions use this container",
                hint="end them first, or stop it with force",
            )
        if not self._life.runs and self._state != "stopping":
            return
        self._stop_answers.append(self.defer())
        if self._state != "stopping":
            self._begin_stop()

    def _begin_stop(self) -> None:
        record = self._record
        assert record is not None
        self._life.on("stop")
        self.pipe_to_self(
            self._stop_and_remove(record),
            lambda _: Stopped(container_id=record.id),
            lambda error: Stopped(container_id=record.id, error=str(error)),
        )

    async def _stop_and_remove(self, record: Container) -> None:
        await self._context.runtime.stop(record.id, timeout=STOP_GRACE)
        await self._removal.remove(record)

    @handles(Stopped)
    def _stopped(self, message: Stopped) -> None:
        record = self._record
        answers, self._stop_answers = self._stop_answers, []
        for answer in answers:
            if message.error is None:
                answer.set(None)
            else:
                answer.set_error(RuntimeFailure(message.error, hint="oubliette doctor"))
        if message.error is None or record is None:
            self._life.on("stopped")
            self._record = None
            if record is not None:
                self._tell_lost("container lost: it was stopped")
            self._removal.ended(Removed(container_id=message.container_id, error=message.error))
            self._begin_if_wanted()
            self._consider_unused()
            return
        self._life.on("stop_failed")  # it still runs, as far as is known
        self._answer_waiting()
        after = self._removal.failures.next_delay()
        if self._idle_timer is None:
            self._idle_timer = self.after(after, IdleStop())

    # ------------------------------------------------------------------ for tools

    @handles(GetStages)
    def _get_stages(self, _: GetStages) -> dict[str, float]:
        return self._stages

    @handles(GetStart)
    def _get_start(self, message: GetStart) -> ContainerStartProgress | None:
        now = self._context.clock.time()
        if (since := self._memory.room.waits_since(message.session_id)) is not None:
            return memory_of(now - (time.monotonic() - since))
        if self._state == "adopting":
            return adoption_of(self._context.runtime.name, self._failing_since)
        limits = self._context.config.containers
        progress = start_of(self._state, self._starter.stages, limits, now)
        if progress is None and message.session_id and self._guest.current is None:
            return link_of(self._guest.why_lost)
        return progress

    @handles(GetContainerInfo)
    def _get_info(self, _: GetContainerInfo) -> ContainerInfo | None:
        return self._info

    @handles(RunCommand)
    def _run(self, message: RunCommand) -> None:
        running = run_command(self._guest, message, self.defer())
        self.pipe_to_self(running, lambda _: Answered(), lambda _: Answered())

    @handles(FetchCommits)
    def _fetch_commits(self, message: FetchCommits) -> None:
        fetching = fetch_commits(self._guest, message, self.defer())
        self.pipe_to_self(fetching, lambda _: Answered(), lambda _: Answered())

    @handles(ListFolder, ReadFile, WriteFile, DeleteFile)
    def _file_request(self, message: ListFolder | ReadFile | WriteFile | DeleteFile) -> None:
        self._files.add(message, self.defer())

    def _use_files(self, serving: Coroutine[Any, Any, None]) -> None:
        self.pipe_to_self(serving, lambda _: FilesIdle(), lambda _: FilesIdle())

    @handles(FilesIdle)
    def _files_idle(self, _: FilesIdle) -> None:
        self._files.ended()

    @handles(StoreImage)
    def _store_image(self, message: StoreImage) -> None:
        if self._record is None or self._state != "up":
            raise NotFound(
                "no container runs", hint="container_start starts it; then install what is to stay"
            )
        runtime = cast("ImageCommits", self._context.runtime)
        stored = runtime.commit(
            self._record.id, message.image, labels=message.labels, timeout=message.timeout
        )
        storing = _answered(self.defer(), stored)
        self.pipe_to_self(storing, lambda _: Answered(), lambda _: Answered())

    @handles(UseProject)
    async def _use_project(self, message: UseProject) -> None:
        self._project = self._spec_builder.project = message.project
        if (record := self._record) is not None:
            current = await asyncio.to_thread(self._spec_builder.is_current, record)
            self._outdated = not current
            self._consider_idle()

    @handles(ReadLogs)
    def _read_logs(self, message: ReadLogs) -> None:
        if self._record is None:
            raise NotFound("no container runs", hint="container_start starts it")
        reading = _answered(self.defer(), self._logs(self._record.id, message.tail))
        self.pipe_to_self(reading, lambda _: Answered(), lambda _: Answered())

    async def _logs(self, container_id: str, tail: int) -> LogText:
        logs = await self._context.runtime.logs(container_id, tail=tail)
        return LogText(text=logs.text, truncated=logs.truncated)

    @handles(Answered)
    def _answered(self, _: Answered) -> None:
        pass

    @handles(GetContainer)
    def _get(self, _: GetContainer) -> Container | None:
        return self._record


async def _answered(answer: Deferred, value: Awaitable[Any]) -> None:
    try:
        answer.set(await value)
    except Exception as error:
        answer.set_error(error)
