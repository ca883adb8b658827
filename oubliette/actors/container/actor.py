"""Actor of one container: start on demand, leases, idle stop, adoption, loss."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from tenacity import wait_exponential_jitter

from oubliette import ids
from oubliette.actors.container.exec import run_command
from oubliette.actors.container.guest_connection import no_answer
from oubliette.actors.container.jobs import (
    AdoptAgain,
    Answered,
    ContainerEnded,
    ContainerStarted,
    IdleStop,
    Inspected,
    Relayed,
    Removed,
    RemovePending,
    RoomTaken,
    StartFailed,
    Stopped,
    start_failed,
)
from oubliette.actors.container.lifecycle import Lifecycle
from oubliette.actors.container.messages import (
    Acquire,
    ContainerIsLost,
    ContainerIsUp,
    GetContainer,
    GetContainerInfo,
    GetMemoryRoom,
    GetStages,
    GuestConnected,
    GuestGone,
    LogText,
    ReadLogs,
    Release,
    RunCommand,
    SocketStarted,
    StageChanged,
    StopContainer,
)
from oubliette.actors.container.spec_builder import ContainerSpecBuilder
from oubliette.actors.container.start_stages import (
    StartStages,
    adoption_of,
    link_of,
    memory_of,
    start_of,
)
from oubliette.actors.session.waits import ContainerStartProgress, GetStart
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, ContainerLost, NotFound, OublietteError, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, handles
from oubliette.kit.backoff import backoff_delay
from oubliette.kit.retry import ask_with_retry
from oubliette.records import Container
from oubliette.runtime.store.operations import DeleteContainer, PutContainer

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.container.key import ContainerKey
    from oubliette.actors.container.lease_memory import LeaseMemory
    from oubliette.actors.container.lifecycle import State
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Deferred, PipedTask, Ref
    from oubliette.kit.timers import ActorTimer
    from oubliette.records import Project, Session
    from oubliette.runtime.containers.base import ContainerInfo

log = structlog.get_logger(__name__)

GONE_REPORTS: Final = 3  # times that its guest may be gone while the engine reports that it runs
STOP_GRACE: Final = 4.0  # seconds from TERM to KILL
IMAGE_SLACK: Final = 5.0  # seconds beyond the deadline of a pull, for the request to the engine
_BACKOFF: Final = wait_exponential_jitter(multiplier=0.1, max=10.0, jitter=0.1)


class ContainerActor(Actor):
    """Actor of the one container of a ContainerKey.

    Args:
        context: ports of the server.
        guest: view of the control link.
        socket: the SocketActor.
        memory: leases of the container.
        project: project of the container.
        key: the container's place in the project.
    """

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
        self._leases = memory.leases
        self._room = memory.room
        self._for_room: dict[str, tuple[PipedTask, Deferred]] = {}
        """Session id → the wait of its agent for memory, and the answer to its Acquire."""
        self._info: ContainerInfo | None = None
        self._proof: asyncio.Future[str | None] | None = None
        """Set when the guest has proved its identity; its result is the error if it never will."""
        self._project = project
        self._key = key
        self._spec_builder = ContainerSpecBuilder(context, project, key)
        self._record: Container | None = None
        self._life = Lifecycle()
        self._outdated = False
        """Whether it was made with other settings, and is kept for the sessions that hold it.
        """
        self._why_lost: str | None = None
        self._waiting: list[Deferred] = []
        self._stop_answers: list[Deferred] = []
        self._idle_timer: ActorTimer | None = None
        self._stages: dict[str, float] = {}
        self._starting: StartStages | None = None
        """Stages of the current start, or of the last one."""
        self._failing_since: float | None = None
        """Wall second since which the engine does not report its containers."""
        self._gone_reports = 0
        self._remains: dict[str, Container] = {}
        """Containers that have ended and are still to be removed from the engine."""
        self._clearing: ActorTimer | None = None
        self._failures = 0

    @property
    def _state(self) -> State:
        return self._life.state

    # ------------------------------------------------------------------ what is there

    async def on_start(self) -> None:
        """Adopt the container of an earlier server, if it still runs.

        Leases of others than live sessions are dropped: they were given back, and tool calls have
        failed, while no actor was there.
        """
        if self._leases:
            self._leases &= {session.id for session in await self._live_sessions()}
        await self._adopt()

    async def _live_sessions(self) -> list[Session]:
        return await self._context.reader.live_sessions(
            self._project.id, workspace_id=self._key.workspace_id
        )

    async def _adopt(self) -> None:
        """Keep the one usable container and remove the others, once the engine lists them."""
        known = [
            record
            for record in await self._context.reader.containers()
            if record.project_id == self._project.id
            and record.workspace_id == self._key.workspace_id
            and record.container_type == self._key.container_type
        ]
        holders = await self._holders()
        for record in known:
            try:
                info = await self._context.runtime.inspect(record.id)
            except (NotFound, ContainerLost):
                await self._forget(record)
                continue
            except OublietteError as error:
                self._adopt_later(error)
                return
            # Otherwise its start was interrupted halfway.
            whole = info.state == "running" and record.state == "running"
            same = self._is_up_to_date(record)
            if not whole or self._record is not None or not (same or holders.get(record.id)):
                self._remains[record.id] = record
                continue
            self._outdated = not same
            self._leases |= holders.get(record.id, set())
            self._up(record, info)
        self._failing_since = None
        if self._record is None:
            self._life.on("examined")
            self._tell_lost("container lost: it did not outlive the server")
        for record in list(self._remains.values()):
            await self._clear(record)
        self._answer_waiting()
        self._consider_idle()
        self._begin_if_wanted()

    def _is_up_to_date(self, record: Container) -> bool:
        try:
            return record.spec_hash == self._spec_builder.digest()
        except OublietteError:  # its type is not configured any more
            return False

    async def _holders(self) -> dict[str, set[str]]:
        """Return container id → ids of the sessions whose agents run in it."""
        found: dict[str, set[str]] = {}
        for session in await self._live_sessions():
            if session.container_id is not None:
                found.setdefault(session.container_id, set()).add(session.id)
        return found

    def _adopt_later(self, error: OublietteError) -> None:
        log.warning("cannot look at containers", project_id=self._project.id, reason=str(error))
        self._life.on("engine_away")
        self._failing_since = self._failing_since or self._context.clock.time()
        self._failures += 1
        self.after(backoff_delay(_BACKOFF, self._failures), AdoptAgain())

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

    async def _store(self, op: PutContainer | DeleteContainer) -> None:
        await ask_with_retry(lambda: self._context.store.ask(Transact(ops=(op,))))

    async def _forget(self, record: Container) -> None:
        await asyncio.to_thread(self._context.folders.remove_spool, record.id)
        await self._store(DeleteContainer(record.id))

    # ------------------------------------------------------------------ leases

    @handles(Acquire)
    def _acquire(self, message: Acquire) -> str | None:
        self._leases.add(message.session_id)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        need = message.memory_mb
        if not message.start:
            if need:
                self._room.count(message.session_id, need)
            return self._record.id if self._record is not None else None
        answer = self.defer()
        if need and not self._room.take_now(message.session_id, need):
            self._await_room(message.session_id, need, answer)
        else:
            self._provide(message.session_id, answer)
        return None

    def _await_room(self, session_id: str, need: int, answer: Deferred) -> None:
        """Provide the container once others have given memory back."""
        self._leave_room_queue(session_id)

        async def take() -> bool:
            try:
                await self._room.take(session_id, need)
            except OublietteError as error:
                answer.set_error(error)
                return False
            return True

        waiting = self.pipe_to_self(
            take(),
            lambda taken: RoomTaken(session_id=session_id, taken=taken),
            lambda _: RoomTaken(session_id=session_id, taken=False),
        )
        self._for_room[session_id] = waiting, answer

    def _leave_room_queue(self, session_id: str) -> None:
        if (known := self._for_room.pop(session_id, None)) is not None:
            known[0].cancel()
            known[1].set_error(ContainerLost("the session does not wait for memory any more"))

    @handles(RoomTaken)
    def _room_taken(self, message: RoomTaken) -> None:
        known = self._for_room.pop(message.session_id, None)
        if known is not None and message.taken:
            self._provide(message.session_id, known[1])

    def _provide(self, session_id: str, answer: Deferred) -> None:
        """Answer with the id of the container, once it is up."""
        if self._state == "up" and self._record is not None:
            if not self._outdated or self._leases - {session_id}:
                answer.set(self._record.id)
                return
            # it has no other session: the next container gets the current settings
            self._begin_stop()
        self._waiting.append(answer)
        self._begin_if_wanted()

    @handles(Release)
    def _release(self, message: Release) -> None:
        self._leave_room_queue(message.session_id)
        self._leases.discard(message.session_id)
        self._room.given_back(message.session_id)
        if not message.ending:
            self._consider_idle()

    @handles(GetMemoryRoom)
    def _get_room(self, message: GetMemoryRoom) -> int | None:
        return self._room.fits(message.memory_mb)

    def _consider_idle(self) -> None:
        if self._leases or self._state != "up":
            return
        if self._outdated:
            self._begin_stop()
        elif self._idle_timer is None:
            after = self._context.config.containers.idle_stop_seconds
            self._idle_timer = self.after(after, IdleStop())

    @handles(IdleStop)
    def _idle_stop(self, _: IdleStop) -> None:
        self._idle_timer = None
        if not self._leases and self._state == "up":
            self._begin_stop()

    # ------------------------------------------------------------------ start

    def _begin_if_wanted(self) -> None:
        if not self._waiting or self._state != "down":
            return
        self._life.on("wanted")
        self.pipe_to_self(self._start(), lambda started: started, start_failed)

    async def _start(self) -> ContainerStarted:
        context = self._context
        self._starting = stages = StartStages(self._tell_sessions)
        container_id = ids.new_id(ids.CONTAINER)
        limits = context.config.containers
        with stages.stage("image"):
            # The pull has this deadline itself, with a more detailed error.
            async with asyncio.timeout(limits.pull_timeout_seconds + IMAGE_SLACK):
                await self._fetch_image(stages)
        key = secrets.token_bytes(32)
        try:
            with stages.stage("create"):
                async with asyncio.timeout(limits.start_timeout_seconds):
                    spec = await asyncio.to_thread(self._spec_builder.spec, container_id)
                    record = Container(
                        id=container_id,
                        project_id=self._project.id,
                        workspace_id=self._key.workspace_id,
                        container_type=self._key.container_type,
                        runtime=context.runtime.name,
                        state="creating",
                        created_at=context.clock.time(),
                        spec_hash=self._spec_builder.digest(),
                        host_key=key,
                        folder=str(spec.runtime_dir),
                    )
                    await self._store(PutContainer(record))
                    failpoint("container.created")
                    await context.runtime.create(spec)
            with stages.stage("start"):
                async with asyncio.timeout(limits.start_timeout_seconds):
                    info = await context.runtime.start(
                        container_id, key=key, timeout=limits.start_timeout_seconds
                    )
        except BaseException:
            await self._undo(container_id)
            raise
        failpoint("container.started")
        record = msgspec.structs.replace(record, state="running", handle=info.handle)
        await self._store(PutContainer(record))
        return ContainerStarted(record=record, info=info, seconds=stages.seconds)

    async def _undo(self, container_id: str) -> None:
        """Undo half a start. If the engine does not answer, the next server removes the remains."""
        try:
            await self._context.runtime.remove(container_id)
            await self._store(DeleteContainer(container_id))
        except OublietteError as error:
            log.warning("half a container is left", container_id=container_id, reason=str(error))

    async def _fetch_image(self, stages: StartStages) -> None:
        image, runtime = self._spec_builder.image, self._context.runtime
        if image is None or await runtime.image_exists(image):
            return
        stages.progress("image", f"fetching {image}")
        await runtime.pull(
            image,
            timeout=self._context.config.containers.pull_timeout_seconds,
            progress=lambda line: stages.progress("image", line),
        )

    @handles(ContainerStarted)
    def _started(self, message: ContainerStarted) -> None:
        self._stages = message.seconds
        self._up(message.record, message.info, relay=True)

    def _up(self, record: Container, info: ContainerInfo, *, relay: bool = False) -> None:
        """Record that it runs; with `relay`, askers wait until its guest proves its identity."""
        self._record = record
        self._life.on("started" if relay else "adopted")
        self._gone_reports = self._failures = 0
        self._info = info
        self._socket.tell(ContainerIsUp(container_id=record.id, key=record.host_key, info=info))
        self.pipe_to_self(
            self._context.runtime.watch(record.id),
            lambda ended: ContainerEnded(container_id=ended.id, exit_code=ended.exit_code),
            lambda _: ContainerEnded(container_id=record.id),
        )
        if relay:
            self._starting = stages = StartStages(self._tell_sessions, record.id, info.warnings)
            stages.seconds = self._stages
            self._proof = asyncio.get_running_loop().create_future()
            self.pipe_to_self(
                self._relay(record.id, stages, self._proof),
                lambda relayed: relayed,
                lambda error: start_failed(error, record.id),
            )

    async def _relay(
        self, container_id: str, stages: StartStages, proof: asyncio.Future[str | None]
    ) -> Relayed:
        limit = self._context.config.containers.start_timeout_seconds
        with stages.stage("relay"):
            try:
                async with asyncio.timeout(limit):
                    why_not = await proof
            except TimeoutError:
                raise no_answer(limit) from None
            if why_not is not None:
                raise ContainerLost(why_not)
        return Relayed(container_id=container_id, seconds=stages.seconds)

    @handles(GuestConnected)
    def _guest_connected(self, message: GuestConnected) -> None:
        if self._record is not None and self._record.id == message.container_id:
            self._prove(None)

    def _prove(self, why_not: str | None) -> None:
        if self._proof is not None and not self._proof.done():
            self._proof.set_result(why_not)

    def _tell_lost(self, reason: str) -> None:
        """Report the loss to the actors that use the link, by its owner."""
        self._prove(reason)
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
        elif self._record is not None and self._record.id == message.container_id:
            self._give_up(self._record, message.reason, message.hint)

    def _fail_waiting(self, reason: str, hint: str | None) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.set_error(RuntimeFailure(reason, hint=hint))

    def _tell_sessions(self, stage: StageChanged) -> None:
        """Report a stage to the sessions that hold it; called from a job, changes nothing."""
        for lease in list(self._leases):
            session = self._context.session_registry.session(lease)
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
        self._remains[record.id] = record
        self._tell_lost(reason)
        if before == "stopping":
            return  # the stop removes it
        self._begin_clearing(record)
        if before == "relay":  # they wait for this very start
            self._fail_waiting(reason, hint)

    def _begin_clearing(self, record: Container) -> None:
        self.pipe_to_self(
            self._remove(record),
            lambda _: Removed(container_id=record.id),
            lambda error: Removed(container_id=record.id, error=str(error)),
        )

    async def _remove(self, record: Container) -> None:
        await self._context.runtime.remove(record.id)
        await self._forget(record)

    async def _clear(self, record: Container) -> None:
        try:
            await self._remove(record)
        except OublietteError as error:
            self._cleared(Removed(container_id=record.id, error=str(error)))
        else:
            self._remains.pop(record.id, None)

    @handles(Removed)
    def _cleared(self, message: Removed) -> None:
        if message.error is None:
            self._remains.pop(message.container_id, None)
            self._failures = 0
            return
        log.warning("not removed", container_id=message.container_id, reason=message.error)
        if self._clearing is None:
            self._failures += 1
            self._clearing = self.after(backoff_delay(_BACKOFF, self._failures), RemovePending())

    @handles(RemovePending)
    def _clear_away(self, _: RemovePending) -> None:
        self._clearing = None
        for record in self._remains.values():
            self._begin_clearing(record)

    @handles(GuestGone)
    def _host_gone(self, message: GuestGone) -> None:
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
        leases = self._leases
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
        await self._remove(record)

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
            self._cleared(Removed(container_id=message.container_id, error=message.error))
            self._begin_if_wanted()
            return
        self._life.on("stop_failed")  # it still runs, as far as is known
        self._answer_waiting()
        self._failures += 1
        if self._idle_timer is None:
            self._idle_timer = self.after(backoff_delay(_BACKOFF, self._failures), IdleStop())

    # ------------------------------------------------------------------ for tools

    @handles(GetStages)
    def _get_stages(self, _: GetStages) -> dict[str, float]:
        return self._stages

    @handles(GetStart)
    def _get_start(self, message: GetStart) -> ContainerStartProgress | None:
        now = self._context.clock.time()
        if (since := self._room.waits_since(message.session_id)) is not None:
            return memory_of(now - (time.monotonic() - since))
        if self._state == "adopting":
            return adoption_of(self._context.runtime.name, self._failing_since)
        limits = self._context.config.containers
        progress = start_of(self._state, self._starting, limits, now)
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

    @handles(ReadLogs)
    def _read_logs(self, message: ReadLogs) -> None:
        if self._record is None:
            raise NotFound("no container runs", hint="container_start starts it")
        reading = self._logs(self._record.id, message.tail, self.defer())
        self.pipe_to_self(reading, lambda _: Answered(), lambda _: Answered())

    async def _logs(self, container_id: str, tail: int, answer: Deferred) -> None:
        try:
            logs = await self._context.runtime.logs(container_id, tail=tail)
            answer.set(LogText(text=logs.text, truncated=logs.truncated))
        except Exception as error:
            answer.set_error(error)

    @handles(Answered)
    def _answered(self, _: Answered) -> None:
        pass

    @handles(GetContainer)
    def _get(self, _: GetContainer) -> Container | None:
        return self._record
