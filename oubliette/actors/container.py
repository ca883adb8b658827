"""The life of one container: start on demand, leases, idle stop, adoption, loss (DESIGN 3.4)."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from oubliette import ids
from oubliette.actors.again import ask_again
from oubliette.actors.container_exec import run_command
from oubliette.actors.container_messages import (
    Acquire,
    ContainerIsUp,
    ContainerStage,
    GetContainer,
    GetStages,
    LogText,
    ReadLogs,
    Release,
    RunCommand,
    SocketStarted,
    StopContainer,
)
from oubliette.actors.store import Transact
from oubliette.errors import Conflict, ContainerLost, NotFound, OublietteError, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, Message, handles
from oubliette.records import Container
from oubliette.runtime.containers import settings
from oubliette.runtime.containers.port import (
    LABEL_CONTAINER,
    LABEL_INSTANCE,
    LABEL_PROJECT,
    LABEL_SPEC,
    ContainerInfo,
    ContainerSpec,
    Mount,
)
from oubliette.runtime.store.ops import DeleteContainer, PutContainer

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from oubliette.actors.gate import HostGate
    from oubliette.actors.services import Services
    from oubliette.actors.unit import UnitKey
    from oubliette.kit import Deferred
    from oubliette.records import Project


class _Started(Message):
    record: Container
    seconds: dict[str, float]


class _StartFailed(Message):
    reason: str


class _Ended(Message):
    container_id: str
    exit_code: int | None = None


class _IdleStop(Message):
    pass


class _Answered(Message):
    pass


class _Stopped(Message):
    error: str | None = None


class ContainerActor(Actor):
    """One container of a ContainerKey (DESIGN 3.2)."""

    def __init__(self, services: Services, gate: HostGate, project: Project, key: UnitKey) -> None:
        super().__init__()
        self._services = services
        self._host_gate = gate
        self._project = project
        self._key = key
        self._record: Container | None = None
        self._running = False
        self._starting = False
        self._stopping = False
        self._waiting: list[Deferred] = []
        self._stop_answers: list[Deferred] = []
        self._idle_timer: object | None = None
        self._stages: dict[str, float] = {}

    # ------------------------------------------------------------------ start

    async def on_start(self) -> None:
        """Adopt the container of an earlier server, where it still runs."""
        runtime = self._services.runtime
        known = [
            record
            for record in await self._services.reader.containers()
            if record.project_id == self._project.id
            and record.workspace_id == self._key.workspace_id
            and record.container_type == self._key.container_type
        ]
        for record in known:
            try:
                info = await runtime.inspect(record.id)
            except OublietteError:
                await self._forget(record)
                continue
            if (
                info.state == "running"
                and record.state == "running"  # else its start was cut off halfway
                and record.spec_hash == self._spec_hash()
                and self._record is None
            ):
                self._up(record, info)
            else:
                await runtime.remove(record.id)
                await self._forget(record)
        if self._record is None:
            self._host_gate.lost("container lost: it did not outlive the server")

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        """Refuse those who wait; the container itself goes on, a successor adopts it."""
        del error
        if reason == "failed":
            return  # they get ActorDead, and ask the successor
        for answer in self._waiting:
            answer.set_error(ContainerLost("the container's actor ended"))

    async def _store(self, op: PutContainer | DeleteContainer) -> None:
        await ask_again(lambda: self._services.store.ask(Transact(ops=(op,))))

    async def _forget(self, record: Container) -> None:
        await self._store(DeleteContainer(record.id))

    def _up(self, record: Container, info: ContainerInfo) -> None:
        self._record, self._running, self._starting = record, True, False
        self._host_gate.info = info
        self._host_gate.starting()
        self._host_gate.socket.tell(ContainerIsUp(container_id=record.id, key=record.host_key))
        self.pipe_to_self(
            self._services.runtime.watch(record.id),
            lambda ended: _Ended(container_id=ended.id, exit_code=ended.exit_code),
            lambda _: _Ended(container_id=record.id),
        )
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.set(record.id)
        self._consider_idle()

    @handles(SocketStarted)
    def _socket_started(self, _: SocketStarted) -> None:
        if self._running and self._record is not None:
            self._host_gate.socket.tell(
                ContainerIsUp(container_id=self._record.id, key=self._record.host_key)
            )

    @handles(Acquire)
    def _acquire(self, message: Acquire) -> str | None:
        self._host_gate.leases.add(message.session_id)
        if not message.start:
            return self._record.id if self._record is not None else None
        if self._running and self._record is not None and not self._stopping:
            return self._record.id
        self._waiting.append(self.defer())
        if not self._starting and not self._stopping:
            self._begin()
        return None

    def _begin(self) -> None:
        self._starting = True
        self._host_gate.starting()
        limit = self._services.config.containers.start_timeout_seconds
        self.pipe_to_self(
            asyncio.wait_for(self._start(), limit),
            lambda started: started,
            lambda error: _StartFailed(
                reason=f"not up within {limit:.0f} s"
                if isinstance(error, TimeoutError) and not str(error)
                else str(error)
            ),
        )

    async def _start(self) -> _Started:
        services = self._services
        began = time.monotonic()
        container_id = ids.new_id(ids.CONTAINER)
        await self._fetch_image()
        imaged = time.monotonic()
        spec = await asyncio.to_thread(self._spec, container_id)
        key = secrets.token_bytes(32)
        record = Container(
            id=container_id,
            project_id=self._project.id,
            workspace_id=self._key.workspace_id,
            container_type=self._key.container_type,
            runtime=services.runtime.name,
            state="creating",
            created_at=services.clock.time(),
            spec_hash=self._spec_hash(),
            host_key=key,
            folder=str(spec.runtime_dir),
        )
        await self._store(PutContainer(record))
        failpoint("container.created")
        try:
            await services.runtime.create(spec)
            created = time.monotonic()
            info = await services.runtime.start(
                container_id,
                key=key,
                timeout=services.config.containers.start_timeout_seconds,
            )
        except BaseException:
            await services.runtime.remove(container_id)
            await self._store(DeleteContainer(container_id))
            raise
        failpoint("container.started")
        record = msgspec.structs.replace(record, state="running", handle=info.handle)
        await self._store(PutContainer(record))
        return _Started(
            record=record,
            seconds={
                "image": imaged - began,
                "create": created - imaged,
                "start": time.monotonic() - created,
            },
        )

    async def _fetch_image(self) -> None:
        services = self._services
        if not services.runtime.capabilities.images:
            return
        image = settings.image_of(services.config, self._key.container_type)
        if not await services.runtime.image_exists(image):
            await services.runtime.pull(
                image, timeout=services.config.containers.pull_timeout_seconds
            )

    def _spec_hash(self) -> str:
        services = self._services
        parts = (
            services.runtime.name,
            services.zipapp.stat().st_size,
            self._key.container_type,
            self._key.workspace_id,
            *self._settings(),
            self._project.uid,
            *self._programs(),
        )
        return hashlib.sha256(msgspec.json.encode([str(part) for part in parts])).hexdigest()[:16]

    def _settings(self) -> tuple[object, ...]:
        """What of the configuration a container is made of."""
        config = self._services.config
        if not self._services.runtime.capabilities.images:
            return (config.process,)
        return (settings.image_of(config, self._key.container_type), settings.all_of(config))

    def _programs(self) -> list[Mount]:
        """The agents' programs; without a sandbox they are where they are."""
        services = self._services
        if services.runtime.capabilities.isolation == "none":
            return []
        return [mount for agent in services.agents.values() for mount in agent.mounts]

    def _spec(self, container_id: str) -> ContainerSpec:
        from oubliette.runtime.containers.folders import new_runtime_dir

        services, project = self._services, self._project
        folders = services.folders
        if self._key.workspace_id is None:
            workspace = folders.project(project.id)
            mounts = [Mount(workspace, "/workspace")]
            mounts += [
                Mount(workspace / name, f"/workspace/{name}", read_only=True)
                for name in ("metadata.json", "config.json")
            ]
        else:
            workspace = folders.workspace(project.id, self._key.workspace_id)
            mounts = [Mount(workspace, f"/workspace/workspaces/{self._key.workspace_id}")]
        mounts.append(Mount(folders.session_homes(project.id), "/home/agent"))
        mounts += self._programs()
        return ContainerSpec(
            id=container_id,
            labels={
                LABEL_INSTANCE: services.instance,
                LABEL_PROJECT: project.id,
                LABEL_CONTAINER: container_id,
                LABEL_SPEC: self._spec_hash(),
            },
            runtime_dir=new_runtime_dir(services.runtime_base),
            mounts=tuple(mounts),
            image=settings.image_of(services.config, self._key.container_type)
            if services.runtime.capabilities.images
            else None,
            network=settings.network_of(services.config, services.runtime.name),
            limits=settings.limits_of(services.config, services.runtime.name),
            uid=project.uid if services.runtime.capabilities.uid_per_container else None,
            orphan_grace=services.config.containers.orphan_grace_seconds,
        )

    @handles(_Started)
    async def _started(self, message: _Started) -> None:
        info = await self._services.runtime.inspect(message.record.id)
        self._stages = message.seconds
        if self._host_gate.leases:
            for session_id in self._host_gate.leases:
                session = self._services.directory.session(session_id)
                if session is not None:
                    session.tell(ContainerStage(seconds=message.seconds, warnings=info.warnings))
        self._up(message.record, info)

    @handles(_StartFailed)
    def _start_failed(self, message: _StartFailed) -> None:
        self._starting = False
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.set_error(
                RuntimeFailure(
                    f"the container could not be started: {message.reason}",
                    hint="oubliette doctor",
                )
            )

    # ------------------------------------------------------------------ end

    @handles(_Ended)
    async def _ended(self, message: _Ended) -> None:
        record = self._record
        if record is None or record.id != message.container_id:
            return
        self._record, self._running = None, False
        code = "" if message.exit_code is None else f" (exit code {message.exit_code})"
        self._host_gate.lost(f"container lost: it ended{code}")
        await self._services.runtime.remove(record.id)
        await self._forget(record)
        if not self._stopping and self._waiting and not self._starting:
            self._begin()

    @handles(Release)
    def _release(self, message: Release) -> None:
        self._host_gate.leases.discard(message.session_id)
        self._consider_idle()

    def _consider_idle(self) -> None:
        if not self._host_gate.leases:
            self.after(self._services.config.containers.idle_stop_seconds, _IdleStop())

    @handles(_IdleStop)
    def _idle_stop(self, _: _IdleStop) -> None:
        if not self._host_gate.leases and self._running and not self._stopping:
            self._begin_stop()

    @handles(StopContainer)
    def _stop_container(self, message: StopContainer) -> None:
        if self._host_gate.leases and not message.force:
            raise Conflict(
                f"{len(self._host_gate.leases)} sessions use this container",
                hint="end them first, or stop it with force",
            )
        if not self._running:
            return
        self._stop_answers.append(self.defer())
        if not self._stopping:
            self._begin_stop()

    def _begin_stop(self) -> None:
        assert self._record is not None
        self._stopping = True
        self.pipe_to_self(
            self._services.runtime.stop(self._record.id, timeout=4.0),
            lambda _: _Stopped(),
            lambda error: _Stopped(error=str(error)),
        )

    @handles(_Stopped)
    async def _stopped(self, message: _Stopped) -> None:
        self._stopping = False
        if message.error is None and self._record is not None:
            await self._ended(_Ended(container_id=self._record.id))
        answers, self._stop_answers = self._stop_answers, []
        for answer in answers:
            if message.error is None:
                answer.set(None)
            else:
                answer.set_error(RuntimeFailure(message.error))
        if self._waiting and not self._starting and not self._running:
            self._begin()

    # ------------------------------------------------------------------ for tools

    @handles(GetStages)
    def _get_stages(self, _: GetStages) -> dict[str, float]:
        return self._stages

    @handles(RunCommand)
    def _run(self, message: RunCommand) -> None:
        self._answer_aside(run_command(self._host_gate, message))

    @handles(ReadLogs)
    def _read_logs(self, message: ReadLogs) -> None:
        if self._record is None:
            raise NotFound("no container runs", hint="container_start starts it")
        self._answer_aside(self._logs(self._record.id, message.tail))

    async def _logs(self, container_id: str, tail: int) -> LogText:
        logs = await self._services.runtime.logs(container_id, tail=tail)
        return LogText(text=logs.text, truncated=logs.truncated)

    def _answer_aside(self, work: Awaitable[object]) -> None:
        """Answer the ask that is being handled with what `work` gives, and go on meanwhile."""
        answer = self.defer()

        async def run() -> None:
            try:
                answer.set(await work)
            except Exception as error:
                answer.set_error(error)

        self.pipe_to_self(run(), lambda _: _Answered(), lambda _: _Answered())

    @handles(_Answered)
    def _answered(self, _: _Answered) -> None:
        pass

    @handles(GetContainer)
    def _get(self, _: GetContainer) -> Container | None:
        return self._record
