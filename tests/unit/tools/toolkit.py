"""A house of tools on a real (in-memory) store, with stand-ins for projects and sessions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from oubliette import ids
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.container.messages import (
    Acquire,
    CommandResult,
    DeleteFile,
    GetContainer,
    GetStages,
    ListFolder,
    ReadFile,
    Release,
    RunCommand,
    StopContainer,
    WriteFile,
)
from oubliette.actors.messages import (
    AnswerCallerTool,
    AnswerPermission,
    CreateProject,
    DeleteProject,
    DeleteWorkspace,
    EndSession,
    FetchRepository,
    InterruptSession,
    ListBranches,
    OpenContainer,
    OpenProject,
    ReadEvents,
    ReportCallProgress,
    RepositoryFetched,
    SessionEvents,
    SpawnResult,
    SpawnSession,
)
from oubliette.actors.session.waits import GetWaits, SessionWaits, Wait
from oubliette.actors.session_registry import SessionRegistry, SessionTable
from oubliette.actors.store.actor import StoreActor, Transact
from oubliette.clock import SystemClock
from oubliette.config.schema import Config
from oubliette.contract.project import BranchInfo
from oubliette.errors import Conflict
from oubliette.kit import Actor, Message, System, handles
from oubliette.mcp_front.events.listen import ListenService
from oubliette.mcp_front.quotas import Quotas
from oubliette.records import Event, Project, Session, Turn, Workspace
from oubliette.runtime.guest.file_answers import (
    FileRange,
    FilesDeleted,
    FileStatus,
    FileWritten,
    FolderPage,
)
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.operations import (
    AppendEvents,
    PutProject,
    PutSession,
    PutTurn,
    PutWorkspace,
)
from oubliette.runtime.store.reader import Reader
from oubliette.tools.agent_endpoint import AgentToolEndpoint, context_of
from oubliette.tools.auth import scopes
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.registry import call
from oubliette.tools.schema.tool_result import ToolResult
from oubliette.tools.services import ServerCapabilities, ToolServices, commits
from oubliette.tools.spec import CallContext

Answer = AnswerCallerTool | AnswerPermission | ReportCallProgress
IDLE = SessionWaits(waits=(Wait(kind="message", what="a message"),))


class Bench:
    """The house, and ways to put things into it."""

    def __init__(self, system: System, store: Any, reader: Reader, clock: Any) -> None:
        self.system = system
        self.store = store
        self.reader = reader
        self.clock = clock
        self.sessions = SessionTable()
        self.session_registry = SessionRegistry(self.sessions)
        self.spawns: list[SpawnSession] = []
        self.asked: list[Message] = []
        self.answers: list[Answer] = []
        self.open_requests: set[str] = set()
        self.waits: dict[str, SessionWaits] = {}
        """Session id → what its actor says that it waits for."""
        self.waited = asyncio.Event()
        """Somebody waits for an event of a session."""
        self.purged: list[tuple[str, str]] = []
        config = Config()
        commit = commits(store)
        self.keys = ApiKeys(commit, reader, clock)
        system.spawn(CallersActor, store, reader, config.callers, name="callers")
        system.spawn(FakeProjects, self, name="projects")
        self.services = ToolServices(
            config=config,
            clock=clock,
            reader=reader,
            commit=commit,
            keys=self.keys,
            projects=system.ref("projects"),
            callers=system.ref("callers"),
            find_session=self.session_registry.session,
            find_actor=system.lookup,
            name_actor=system.ref,
            offers=ServerCapabilities(
                agents=("scripted",), container_types=("base",), runtimes=("process",)
            ),
            forget_session=self._forget,
            ask_live=self.session_registry.ask,
        )
        self.services.listen = ListenService(
            system.ref("callers"), system.ref, Quotas(config.callers), config.callers
        )
        self.agents = AgentToolEndpoint(self.services)

    async def _forget(self, project_id: str, session_id: str) -> None:
        self.purged.append((project_id, session_id))

    # ------------------------------------------------------------------ things

    async def project(self, name: str = "p") -> Project:
        result = await self.do("project_create", name=name)
        record = await self.reader.project(result["id"])
        assert record is not None
        return record

    async def session(
        self,
        project: Project,
        *,
        principal: str = "alice",
        live: bool = False,
        parent: Session | None = None,
        **fields: Any,
    ) -> Session:
        session_id = ids.new_id(ids.SESSION)
        now = self.clock.time()
        record = Session(
            **{
                "id": session_id,
                "project_id": project.id,
                "workspace_id": project.default_workspace_id,
                "principal": principal,
                "agent": "scripted",
                "status": "idle" if live else "completed",
                "created_at": now,
                "updated_at": now,
                "exploration_id": parent.exploration_id if parent else ids.new_id(ids.EXPLORATION),
                "depth": parent.depth + 1 if parent else 0,
                "parent_session_id": parent.id if parent else None,
                "root_session_id": parent.root_session_id if parent else session_id,
                **fields,
            }
        )
        await self.put(PutSession(record))
        if live:
            self.run(record)
        return record

    def run(self, record: Session) -> Any:
        ref = self.system.spawn(FakeSession, self, record.id, name=f"session/{record.id}")
        self.sessions.enter(record.id, ref)
        return ref

    async def put(self, *ops: Any) -> Any:
        return await self.store.ask(Transact(ops=ops))

    async def write(self, session: Session, kind: str = "message", **data: Any) -> Event:
        """Append an event; whoever waits for it at the session is told."""
        (appended,) = (
            await self.put(
                AppendEvents(
                    (
                        Event(
                            session_id=session.id,
                            index=-1,
                            ts=self.clock.time(),
                            type=kind,
                            data=data,
                            principal=session.principal,
                            caller_id=session.caller_id,
                        ),
                    )
                )
            )
        )[0]
        ref = self.session_registry.session(session.id)
        if ref is not None:
            ref.tell(Wrote())
        return appended

    async def turn(self, session: Session, outcome: str | None, result: str | None = None) -> None:
        """Give the session its next turn; with an outcome it is done."""
        record = await self.reader.session(session.id)
        assert record is not None
        number = record.turn_count + 1
        await self.put(
            PutSession(
                msgspec.structs.replace(
                    record,
                    turn_count=number,
                    status=record.status if outcome else "running",
                    final_response=result if outcome == "completed" else record.final_response,
                )
            ),
            PutTurn(
                Turn(
                    session_id=session.id,
                    number=number,
                    prompt="p",
                    state="done" if outcome else "running",
                    created_at=self.clock.time(),
                    outcome=outcome,
                    result=result,
                )
            ),
        )

    # ------------------------------------------------------------------ calls

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        scope: str = "admin",
        principal: str = "alice",
        transport: Any = "http",
        **fields: Any,
    ) -> ToolResult:
        context = CallContext(
            principal=principal,
            token_id="tok_test",
            scope=scopes.parse(scope),
            transport=transport,
            **fields,
        )
        return await call(self.services, context, tool, arguments)

    async def do(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call as alice, with all rights; it must work."""
        result = await self.call(tool, arguments)
        assert not result.is_error, result.text
        return result.structured

    async def error(self, tool: str, /, scope: str = "admin", **arguments: Any) -> str:
        """Call as alice; it must fail. Returns the sentence."""
        result = await self.call(tool, arguments, scope=scope)
        assert result.is_error, result.text
        return result.text

    async def key(self, scope: str, **fields: Any) -> tuple[str, CallContext]:
        new = await self.keys.create(name="k", scope=scopes.parse(scope), **fields)
        return new.key, context_of(new.token, "http")


class Wrote(Message):
    pass


class Late(Message):
    pass


class FakeProjects(Actor):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench

    @handles(CreateProject)
    async def create_project(self, message: CreateProject) -> Project:
        self.bench.asked.append(message)
        project = Project(
            id=ids.new_id(ids.PROJECT),
            name=message.name,
            created_at=self.clock.time(),
            default_workspace_id=ids.new_uuid(),
            uid=1,
            description=message.description,
            limits=message.limits,
            owner=message.principal,
        )
        await self.bench.put(
            PutProject(project),
            PutWorkspace(
                Workspace(
                    id=project.default_workspace_id,
                    project_id=project.id,
                    created_at=project.created_at,
                    is_default=True,
                )
            ),
        )
        return project

    @handles(OpenProject)
    async def open_project(self, message: OpenProject) -> str:
        name = f"projects/{message.project_id}"
        if self.system.lookup(name) is None:
            self.spawn(FakeProject, self.bench, message.project_id, name=name)
        return name

    @handles(DeleteProject)
    async def delete_project(self, message: DeleteProject) -> None:
        if await self.bench.reader.live_sessions(message.project_id):
            raise Conflict("sessions live in this project", hint="end them with session_end")
        record = await self.bench.reader.project(message.project_id)
        assert record is not None
        await self.bench.put(
            PutProject(msgspec.structs.replace(record, deleted_at=self.clock.time()))
        )


class FakeProject(Actor):
    def __init__(self, bench: Bench, project_id: str) -> None:
        super().__init__()
        self.bench = bench
        self.project_id = project_id

    @handles(FetchRepository)
    def fetch_repository(self, _: FetchRepository) -> RepositoryFetched:
        return RepositoryFetched()

    @handles(ListBranches)
    def list_branches(self, _: ListBranches) -> tuple[BranchInfo, ...]:
        return ()

    @handles(SpawnSession)
    async def spawn_session(self, message: SpawnSession) -> SpawnResult:
        bench = self.bench
        bench.spawns.append(message)
        project = await bench.reader.project(self.project_id)
        assert project is not None
        spawned = message.session_id is None
        if message.session_id is None:
            parent = None
            if message.parent_session_id is not None:
                parent = await bench.reader.session(message.parent_session_id)
            record = await bench.session(
                project,
                principal=message.principal,
                live=True,
                parent=parent,
                caller_id=message.caller_id,
                caller_tools=message.caller_tools or (),
                minted_token_id=message.minted_token_id,
                given_key=message.api_key is not None,
                given_token_id=message.given_token_id,
            )
        else:
            found = await bench.reader.session(message.session_id)
            assert found is not None
            record = found
        return SpawnResult(
            session_id=record.id,
            project_id=record.project_id,
            workspace_id=record.workspace_id,
            workspace_created=False,
            status=record.status,
            spawned=spawned,
            resumed=False,
            last_index=-1,
        )

    @handles(OpenContainer)
    def open_unit(self, message: OpenContainer) -> str:
        if self.system.lookup(f"{self.name}/base/container") is None:
            self.spawn(FakeContainer, name=f"{self.name}/base/container")
        return f"{self.name}/base"

    @handles(DeleteWorkspace)
    def delete_workspace(self, message: DeleteWorkspace) -> None:
        self.bench.asked.append(message)

    @handles(EndSession)
    async def end_session(self, message: EndSession) -> str:
        self.bench.asked.append(message)
        record = await self.bench.reader.session(message.session_id)
        assert record is not None
        await self.bench.put(PutSession(msgspec.structs.replace(record, ended_by=message.reason)))
        return record.status


class FakeContainer(Actor):
    """A container that never starts."""

    @handles(Acquire)
    def acquire(self, message: Acquire) -> str:
        return "none"

    @handles(Release)
    def release(self, message: Release) -> None:
        pass

    @handles(StopContainer)
    def stop_it(self, message: StopContainer) -> None:
        pass

    @handles(GetContainer)
    def get(self, message: GetContainer) -> None:
        return None

    @handles(GetStages)
    def stages(self, message: GetStages) -> dict[str, float]:
        return {}

    @handles(RunCommand)
    def run(self, message: RunCommand) -> CommandResult:
        return CommandResult(exit_code=0, stdout="", stderr="", truncated=False, timed_out=False)

    @handles(ListFolder)
    def list_folder(self, message: ListFolder) -> FolderPage:
        return FolderPage(status=FileStatus(kind="folder", modified=0))

    @handles(ReadFile)
    def read_file(self, message: ReadFile) -> FileRange:
        return FileRange(status=FileStatus(kind="file", modified=0), data=b"")

    @handles(WriteFile)
    def write_file(self, message: WriteFile) -> FileWritten:
        return FileWritten(created=True, received=len(message.data), version="1")

    @handles(DeleteFile)
    def delete_file(self, message: DeleteFile) -> FilesDeleted:
        return FilesDeleted(deleted=1)


class FakeSession(Actor):
    def __init__(self, bench: Bench, session_id: str) -> None:
        super().__init__()
        self.bench = bench
        self.session_id = session_id
        self.waiting: list[tuple[ReadEvents, Any]] = []

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        self.bench.sessions.leave(self.session_id, self.name)

    async def read_log(self, message: ReadEvents) -> SessionEvents:
        reader = self.bench.reader
        log = await reader.log(
            self.session_id, message.since_index, message.max_events, message.max_bytes
        )
        record = await reader.session(self.session_id)
        assert record is not None
        return SessionEvents(
            session=record,
            events=tuple(log.events),
            last_index=log.events[-1].index if log.events else message.since_index,
            log_end=log.last_index,
            truncated_before=log.truncated_before,
            turn_done=not await reader.turns(self.session_id, ("queued", "running")),
        )

    @handles(ReadEvents)
    async def read_events(self, message: ReadEvents) -> None:
        answer = self.defer()
        found = await self.read_log(message)
        if found.events or message.wait_seconds <= 0:
            answer.set(found)
        else:
            self.waiting.append((message, answer))
            self.bench.waited.set()
            self.after(message.wait_seconds, Late())

    @handles(Wrote, Late)
    async def wrote(self, _: Message) -> None:
        waiting, self.waiting = self.waiting, []
        for message, answer in waiting:
            if not answer.done:
                answer.set(await self.read_log(message))

    @handles(AnswerCallerTool, AnswerPermission, ReportCallProgress)
    def answer_tool(self, message: Answer) -> bool:
        self.bench.answers.append(message)
        if message.request_id in self.bench.open_requests:
            self.bench.open_requests.discard(message.request_id)
            return True
        return False

    @handles(GetWaits)
    def what_it_waits_for(self, _: GetWaits) -> SessionWaits:
        return self.bench.waits.get(self.session_id, IDLE)

    @handles(InterruptSession)
    def interrupt_turn(self, message: InterruptSession) -> str:
        self.bench.asked.append(message)
        return "idle"

    @handles(EndSession)
    async def end_session(self, message: EndSession) -> str:
        self.bench.asked.append(message)
        record = await self.bench.reader.session(self.session_id)
        assert record is not None
        await self.bench.put(
            PutSession(
                msgspec.structs.replace(
                    record, status="completed", ended_by=message.reason, ended_at=1.0
                )
            )
        )
        self.stop()
        return "completed"


@contextlib.asynccontextmanager
async def bench(clock: Any = None) -> Any:
    database = Database()
    reader = Reader(database, threads=2)
    try:
        async with System("tools", clock=clock or SystemClock()) as system:
            store = system.spawn(StoreActor, database, name="store")
            made = Bench(system, store, reader, clock or SystemClock())
            await made.keys.load()
            yield made
            await made.keys.aclose()
    finally:
        await reader.aclose()
        database.close()
