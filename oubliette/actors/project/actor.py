"""Actor of one project: its workspaces, and the rules for starting sessions in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import ids
from oubliette.actors.agent_requests.caller_tools import new_pairing_secret, tools_after
from oubliette.actors.container.key import ContainerKey
from oubliette.actors.container.messages import StopContainer
from oubliette.actors.container.unit import ContainerSupervisor, KeepApiKey, StartSession
from oubliette.actors.exploration.actor import OpenExploration, Reserve, Unreserve
from oubliette.actors.exploration.limits import resolve_limits
from oubliette.actors.messages import (
    CallerSeen,
    DeleteWorkspace,
    EndSession,
    OpenCaller,
    OpenContainer,
    SpawnResult,
    SpawnSession,
)
from oubliette.actors.project.disk_quota import (
    DiskQuotaMonitor,
    Measured,
    MeasureFailed,
    MeasureNow,
)
from oubliette.actors.session import lifecycle
from oubliette.actors.session.messages import SubmitTurn
from oubliette.actors.store.actor import Transact
from oubliette.errors import (
    AlreadyExists,
    Conflict,
    InvalidParameter,
    LimitExceeded,
    NotFound,
    SessionHandover,
)
from oubliette.failpoints import failpoint
from oubliette.kit import ActorDead, ChildSpec, DynamicSupervisor, Message, Reply, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.records import Event, IdempotencyKey, Project, Session, Turn, Workspace
from oubliette.runtime.store.operations import (
    AppendEvents,
    PutIdempotency,
    PutSession,
    PutTurn,
    PutWorkspace,
)

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.runtime.store.operations import Op

log = structlog.get_logger(__name__)

IDEMPOTENCY_SECONDS: Final = 86_400.0
DEFAULT_CONTAINER_TYPE: Final = "base"


class CloseProject(Message, Reply[None]):
    """To a ProjectActor: stop the project's containers; refused while sessions live."""


class ProjectActor(DynamicSupervisor):
    """Supervisor of a project's containers, which decides on the start of its sessions."""

    def __init__(self, context: ActorContext, project: Project) -> None:
        super().__init__(max_restarts=20, within=10.0)
        self._context = context
        self._project = project
        self._watch = DiskQuotaMonitor(context, project.id, self.after, self.pipe_to_self)
        self._closed = False
        """Whether the project is being deleted."""

    async def on_start(self) -> None:  # type: ignore[override]
        """Make the folders that a crash may have left out; recover the live sessions."""
        folders, project = self._context.folders, self._project
        await asyncio.to_thread(folders.create_project, project)
        for workspace in await self._context.reader.workspaces(project.id):
            await asyncio.to_thread(folders.create_workspace, project, workspace.id)
        super().on_start()
        for container in await self._context.reader.containers(project.id):
            self._unit(ContainerKey(container.container_type, container.workspace_id))
        for session in await self._context.reader.live_sessions(project.id):
            self._unit(self._key(session))  # which recovers its sessions
            self._watch.begin()

    # ------------------------------------------------------------------ units

    def _key(self, session: Session) -> ContainerKey:
        kind = self._project.container_type or DEFAULT_CONTAINER_TYPE
        return ContainerKey(
            kind, session.workspace_id if self._project.workspace_isolation else None
        )

    def _unit(self, key: ContainerKey) -> Ref:
        spec = ChildSpec(
            name=key.label,
            cls=ContainerSupervisor,
            args=(self._context, self._project, key),
            shutdown=15.0,
        )
        return self.system.ref(self.ensure_child(spec))

    @handles(OpenContainer)
    def _open_unit(self, message: OpenContainer) -> str:
        project = self._project
        workspace = message.workspace_id or project.default_workspace_id
        kind = project.container_type or DEFAULT_CONTAINER_TYPE
        return self._unit(
            ContainerKey(kind, workspace if project.workspace_isolation else None)
        ).name

    async def _run_session(self, session: Session, *, resumed: bool) -> None:
        self._watch.begin()
        unit = self._unit(self._key(session))
        await unit.ask(StartSession(session_id=session.id, resumed=resumed))

    async def _hand_over_key(self, session: Session, api_key: str | None) -> None:
        keep = KeepApiKey(session_id=session.id, api_key=api_key)
        unit = self._unit(self._key(session))
        await ask_with_retry(lambda: unit.ask(keep))

    # ------------------------------------------------------------------ spawn

    @handles(SpawnSession)
    async def _spawn(self, message: SpawnSession) -> SpawnResult:
        if self._closed:
            raise NotFound(f"project_id: there is no project {self._project.id}")
        if message.caller_id is not None:
            await self._meet_caller(message)
        known = await self._known(message)
        if known is not None:
            return known
        workspace, created = await self._workspace(message)
        target = await self._target(message, workspace)
        if target is not None and (live := self._context.session_registry.session(target.id)):
            try:
                return await self._submit(message, target, live)
            except (ActorDead, Conflict) as error:
                target = await self._context.reader.session(target.id)
                if target is None or not lifecycle.resumable(target):
                    # An actor that failed while handling our message may have accepted it: never to
                    # two.
                    if message.session_id is not None or isinstance(error, ActorDead):
                        raise
                    target = None
        if target is not None and lifecycle.live(target):
            raise SessionHandover("the session is changing hands", hint="try again in a moment")
        if target is not None:
            return await self._resume(message, target)
        return await self._new(message, workspace, created=created)

    async def _known(self, message: SpawnSession) -> SpawnResult | None:
        """Return the answer to an earlier request with the same idempotency key."""
        reader = self._context.reader
        if message.call_id is not None:
            turn = await reader.turn_of_call(message.call_id)
            if turn is not None:
                session = await reader.session(turn.session_id)
                if session is not None:
                    return _result(session, turn=turn.number, log_end=-1, spawned=turn.number == 1)
        if message.idempotency is not None:
            key = message.idempotency
            found = await reader.idempotency(message.principal, key.tool, key.key)
            if found is not None and self.clock.time() - found.created_at < IDEMPOTENCY_SECONDS:
                return _answer_again(found, key.digest)
        return None

    def _claim(self, message: SpawnSession, result: SpawnResult) -> IdempotencyKey | None:
        key = message.idempotency
        if key is None:
            return None
        return IdempotencyKey(
            principal=message.principal,
            tool=key.tool,
            key=key.key,
            digest=key.digest,
            created_at=self.clock.time(),
            answer=msgspec.to_builtins(result),
        )

    async def _workspace(self, message: SpawnSession) -> tuple[Workspace | None, bool]:
        """Return the workspace that the message names; None if its session determines it."""
        if message.session_id is not None:
            return None, False
        if message.workspace_id is None and not message.create_workspace:
            wanted = self._project.default_workspace_id
            if message.external_id is not None:
                for workspace in await self._context.reader.workspaces(self._project.id):
                    if (workspace.external_id, workspace.source) == (
                        message.external_id,
                        message.source,
                    ):
                        wanted = workspace.id
        elif message.workspace_id is None:
            wanted = ids.new_uuid()
        else:
            wanted = ids.check_uuid(message.workspace_id, "workspace_id")
        workspace = await self._context.reader.workspace(wanted)
        if workspace is not None and workspace.deleted_at is None:
            if workspace.project_id == self._project.id:
                return workspace, False
            workspace = None
            if message.create_workspace:
                raise AlreadyExists("workspace_id: this UUID is taken; choose another")
        if workspace is None and message.create_workspace:
            made = await self._make_workspace(wanted, message.external_id, message.source)
            return made, True
        raise NotFound(
            f"workspace_id: there is no workspace {wanted} in this project",
            hint="create_workspace=true makes it",
        )

    async def _make_workspace(
        self, workspace_id: str, external_id: str | None, source: str | None
    ) -> Workspace:
        workspace = Workspace(
            id=workspace_id,
            project_id=self._project.id,
            created_at=self.clock.time(),
            external_id=external_id,
            source=source,
        )
        await self._context.store.ask(Transact(ops=(PutWorkspace(workspace),)))
        await asyncio.to_thread(self._context.folders.create_workspace, self._project, workspace_id)
        return workspace

    async def _target(self, message: SpawnSession, workspace: Workspace | None) -> Session | None:
        """Return the session that is meant, unless it is a new one."""
        reader = self._context.reader
        if message.session_id is not None:
            session = await reader.session(message.session_id)
            if (
                session is None
                or session.project_id != self._project.id
                or session.principal != message.principal
                or (
                    message.parent_session_id is not None
                    and session.parent_session_id != message.parent_session_id
                )
            ):
                raise NotFound(f"session_id: there is no session {message.session_id}")
            if session.ended_by is not None:
                raise Conflict(
                    "the session was ended and takes no more messages",
                    hint="start another one with new_session=true",
                )
            return session
        if message.new_session or workspace is None:
            return None
        return await reader.latest_session(
            workspace.id, message.principal, message.parent_session_id
        )

    async def _submit(self, message: SpawnSession, target: Session, live: Ref) -> SpawnResult:
        result = _result(target, turn=0, log_end=-1)
        submitted = await live.ask(
            SubmitTurn(
                prompt=message.prompt,
                caller_id=message.caller_id,
                caller_tools=message.caller_tools,
                call_id=message.call_id,
                idempotency=self._claim(message, result),
            )
        )
        return msgspec.structs.replace(
            result,
            turn=submitted.turn,
            last_index=submitted.log_end,
            warnings=submitted.warnings,
        )

    async def _meet_caller(self, message: SpawnSession) -> None:
        """Count a message under a caller_id as a sign of life of that caller."""
        assert message.caller_id is not None
        if message.parent_session_id is not None:
            return
        opened = OpenCaller(principal=message.principal, caller_id=message.caller_id)
        name = await ask_with_retry(lambda: self.system.ref("callers").ask(opened))
        self.system.ref(name).tell(CallerSeen())

    async def _check_room(self) -> None:
        limit = self._context.config.sessions.max_live_per_project
        live = await self._context.reader.count_live_sessions(self._project.id)
        if live >= limit:
            raise LimitExceeded(
                f"sessions.max_live_per_project: {lifecycle.living(live, 'top-level session')}"
                f" in this project, the limit is {limit} (set by the configuration)",
                hint="end one with session_end",
            )

    async def _reserve(self, session: Session, *, new: bool) -> Ref:
        opened = OpenExploration(exploration_id=session.exploration_id, limits=session.limits)
        place = Reserve(session_id=session.id, depth=session.depth, new=new)

        async def reserve() -> Ref:
            tree = self.system.ref(await self.system.ref("explorations").ask(opened))
            await tree.ask(place)
            return tree

        return await ask_with_retry(reserve)

    async def _resume(self, message: SpawnSession, target: Session) -> SpawnResult:
        if target.depth == 0:
            await self._check_room()
        tree = await self._reserve(target, new=False)
        caller_id, tools = tools_after(target, message.caller_id, message.caller_tools)
        session = msgspec.structs.replace(
            target,
            status=lifecycle.after(target.status, "resumed"),
            status_reason=None,
            ended_at=None,
            process_id=None,
            caller_id=caller_id,
            caller_tools=tools,
            minted_token_id=message.minted_token_id,
            given_key=message.api_key is not None,
        )
        return await self._record(message, session, tree, resumed=True)

    async def _new(
        self, message: SpawnSession, workspace: Workspace | None, *, created: bool
    ) -> SpawnResult:
        assert workspace is not None
        session = await self._describe(message, workspace)
        if session.depth == 0:
            await self._check_room()
        tree = await self._reserve(session, new=True)
        used = msgspec.structs.replace(workspace, last_session_at=self.clock.time())
        return await self._record(message, session, tree, PutWorkspace(used), created=created)

    async def _describe(self, message: SpawnSession, workspace: Workspace) -> Session:
        project, context = self._project, self._context
        now = self.clock.time()
        session_id = ids.new_id(ids.SESSION)
        parent = None
        if message.parent_session_id is not None:
            parent = await context.reader.session(message.parent_session_id)
            if parent is None:
                raise NotFound(f"there is no session {message.parent_session_id}")
        configs = context.folders.configs
        settings = await asyncio.to_thread(configs.add_workspace, project, workspace.id)
        return Session(
            id=session_id,
            project_id=project.id,
            workspace_id=workspace.id,
            principal=message.principal,
            agent=self._agent(message.agent or (parent.agent if parent else settings.agent)),
            status="created",
            created_at=now,
            updated_at=now,
            exploration_id=parent.exploration_id if parent else ids.new_id(ids.EXPLORATION),
            depth=parent.depth + 1 if parent else 0,
            parent_session_id=parent.id if parent else None,
            root_session_id=parent.root_session_id if parent else session_id,
            model=message.model or (parent.model if parent else settings.model),
            autonomy=message.autonomy
            or (parent.autonomy if parent else settings.autonomy)
            or "off",
            isolation=context.runtime.capabilities.isolation,
            caller_id=message.caller_id,
            caller_tools=message.caller_tools or (),
            limits=parent.limits if parent else resolve_limits(project.limits, context),
            external_id=message.external_id,
            source=message.source,
            minted_token_id=message.minted_token_id,
            given_key=message.api_key is not None,
            pairing_secret=new_pairing_secret(),
        )

    def _agent(self, wanted: str | None) -> str:
        agents = self._context.agents
        name = wanted or self._context.config.agents.default
        if name == "auto":
            name = next(iter(agents))
        missing = self._context.missing_agents.get(name)
        if missing is not None:
            raise InvalidParameter(
                f"agent: {name} cannot be used here: {missing.reason}",
                field="agent",
                hint=missing.remedy,
            )
        if name not in agents:
            raise InvalidParameter(
                f"agent: there is no agent {ids.shown(name)} here; known: {', '.join(agents)}",
                field="agent",
            )
        return name

    async def _record(
        self,
        message: SpawnSession,
        session: Session,
        tree: Ref,
        *more: Op,
        created: bool = False,
        resumed: bool = False,
    ) -> SpawnResult:
        """Store the session, its first turn and `more`, then run it."""
        turn = Turn(
            session_id=session.id,
            number=session.turn_count + 1,
            prompt=message.prompt,
            state="queued",
            created_at=self.clock.time(),
            call_id=message.call_id,
        )
        session = msgspec.structs.replace(
            session, turn_count=turn.number, last_prompt=message.prompt
        )
        log_end = await self._context.reader.last_index(session.id) if resumed else -1
        event = _begun(session, log_end + 1, self.clock.time(), resumed=resumed)
        result = _result(
            session,
            turn=turn.number,
            log_end=event.index,
            created=created,
            spawned=not resumed,
            resumed=resumed,
        )
        claim = self._claim(message, result)
        ops = (*more, PutSession(session), PutTurn(turn), AppendEvents((event,)))
        try:
            if message.api_key is not None:
                await self._hand_over_key(session, message.api_key)
            await self._context.store.ask(
                Transact(ops=ops if claim is None else (*ops, PutIdempotency(claim)))
            )
        except BaseException:
            if message.api_key is not None:
                forget = KeepApiKey(session_id=session.id, api_key=None)
                self._unit(self._key(session)).tell(forget)
            tree.tell(Unreserve(session_id=session.id, new=not resumed))
            raise
        failpoint("project.session_recorded")
        try:
            await self._run_session(session, resumed=resumed)
        except ActorDead:
            log.info("its unit restarts, and finds it in the store", session_id=session.id)
        return result

    # ------------------------------------------------------------------ its size

    @handles(MeasureNow)
    def _measure_now(self, _: MeasureNow) -> None:
        self._watch.measure()

    @handles(Measured)
    def _measured(self, message: Measured) -> None:
        self._watch.measured(message)

    @handles(MeasureFailed)
    def _measure_failed(self, message: MeasureFailed) -> None:
        self._watch.failed(message)

    # ------------------------------------------------------------------ the rest

    @handles(EndSession)
    async def _end_finished(self, message: EndSession) -> str:
        session = await self._context.reader.session(message.session_id)
        if session is None or session.project_id != self._project.id:
            raise NotFound(f"session_id: there is no session {message.session_id}")
        if lifecycle.live(session):  # no actor runs it yet, after a restart of the server
            raise SessionHandover("the session is changing hands", hint="try again in a moment")
        if session.ended_by is not None:
            return session.status
        ended = msgspec.structs.replace(session, ended_by=message.reason)
        await self._context.store.ask(Transact(ops=(PutSession(ended),)))
        return ended.status

    @handles(DeleteWorkspace)
    async def _delete_workspace(self, message: DeleteWorkspace) -> None:
        workspace = await self._context.reader.workspace(message.workspace_id)
        if (
            workspace is None
            or workspace.deleted_at is not None
            or workspace.project_id != self._project.id
        ):
            raise NotFound(f"workspace_id: there is no workspace {message.workspace_id}")
        if workspace.is_default:
            raise Conflict("the default workspace of a project cannot be deleted")
        live = await self._context.reader.live_sessions(self._project.id, workspace_id=workspace.id)
        if live:
            refusal = f"{lifecycle.living(len(live))} in this workspace"
            raise Conflict(refusal, hint="end them with session_end")
        if self._project.workspace_isolation:
            await self._stop_unit(ContainerKey(self._kind, workspace.id))
        gone = msgspec.structs.replace(workspace, deleted_at=self.clock.time())
        await self._context.store.ask(Transact(ops=(PutWorkspace(gone),)))
        await asyncio.to_thread(
            self._context.folders.remove_workspace, self._project.id, workspace.id
        )

    @property
    def _kind(self) -> str:
        return self._project.container_type or DEFAULT_CONTAINER_TYPE

    async def _stop_unit(self, key: ContainerKey) -> None:
        if self.has_child(key.label):
            container = self.system.ref(f"{self.name}/{key.label}/container")
            await container.ask(StopContainer(force=True))

    @handles(CloseProject)
    async def _close(self, _: CloseProject) -> None:
        live = await self._context.reader.live_sessions(self._project.id)
        if live:
            refusal = f"{lifecycle.living(len(live))} in this project"
            raise Conflict(refusal, hint="end them with session_end")
        self._closed = True
        for label in self.children:
            await self.system.ref(f"{self.name}/{label}/container").ask(StopContainer(force=True))


def _begun(session: Session, index: int, ts: float, *, resumed: bool) -> Event:
    """Return the first event of a session."""
    return Event(
        session_id=session.id,
        index=index,
        ts=ts,
        type="status",
        data={
            "status": "created",
            "resumed": resumed,
            "parent_session_id": session.parent_session_id,
            "depth": session.depth,
            "isolation": session.isolation,
        },
        principal=session.principal if session.caller_id else "",
        caller_id=session.caller_id,
    )


def _result(
    session: Session,
    *,
    turn: int,
    log_end: int,
    created: bool = False,
    spawned: bool = False,
    resumed: bool = False,
) -> SpawnResult:
    return SpawnResult(
        session_id=session.id,
        project_id=session.project_id,
        workspace_id=session.workspace_id,
        workspace_created=created,
        status=session.status,
        spawned=spawned,
        resumed=resumed,
        last_index=log_end,
        turn=turn,
    )


def _answer_again(found: IdempotencyKey, digest: bytes) -> SpawnResult:
    if found.digest != digest:
        raise Conflict("idempotency_key: it was used with other arguments", hint="choose a new key")
    return msgspec.convert(found.answer or {}, SpawnResult)
