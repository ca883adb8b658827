"""AttachedCommands: commands in containers whose streams a client has, as with `docker exec -it`.

They are no calls of a tool, as they are not answered by one document; a command is checked and
logged as a call of `exec`, at the home of its project.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

from oubliette.actors.container.attached_command import (
    TERM,
    AttachedCommand,
    CommandClient,
    run_at,
    until_either,
)
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import (
    Conflict,
    Forbidden,
    InvalidParameter,
    LimitExceeded,
    OublietteError,
)
from oubliette.incontainer import wire
from oubliette.kit import ActorDead
from oubliette.kit.fair_loop import working_for
from oubliette.runtime.files.git_identity import variables
from oubliette.tools.call_at_home import ATTEMPTS, identity, project_moves, project_of
from oubliette.tools.handlers.containers import (
    WorkspaceOfContainer,
    container_in_use,
    workspace_path,
)
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.home_streams import LivesElsewhere, open_at_home
from oubliette.tools.registry import carry_out
from oubliette.tools.schema.tool_result import failure
from oubliette.tools.spec import PERSONS, CallContext, CallerIdentity, Handler, Result, Tool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from oubliette.kit import Down
    from oubliette.records import Project
    from oubliette.tools.home_nodes import HomeNodes
    from oubliette.tools.home_streams import HomeStream, StreamEnd
    from oubliette.tools.services import ToolServices

KIND: Final = "exec"
"""Kind of the streams to the home of a project."""
PER_PLACE: Final = 8
"""Commands that are attached to one session, or to one project, at a time."""
PER_PRINCIPAL: Final = 16
"""Commands that a principal has attached through one machine at a time."""
LARGEST: Final = 128 * 1024  # characters of a command
_BEGUN: Final = b"+"
"""First byte of a stream from the home: the command runs."""

_Side = Annotated[int, Meta(ge=1, le=wire.MAX_WINDOW)]


class Window(Params, frozen=True, kw_only=True):
    """Terminal of a command."""

    rows: _Side
    cols: _Side
    term: Annotated[str, Meta(min_length=1, max_length=64, extra={"check": "line"})] = TERM
    """Value of the variable `TERM`."""


class Exec(Params, frozen=True, kw_only=True):
    """Request of a client: a command in the container of a session, or of a project."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=10_000)]
    """Program and arguments."""
    project_id: field_types.ProjectId | None = None
    session_id: field_types.SessionId | None = None
    workspace_id: WorkspaceOfContainer = None
    working_dir: field_types.InsidePath | None = None
    """Absolute path in the container; None: the workspace."""
    stdin: bool = False
    """Whether the client sends input; with a terminal it may always."""
    terminal: Window | None = None


class ExecEnded(Result, frozen=True, kw_only=True):
    """Result of a command."""

    exit_code: int | None
    """None: its client went before it ended."""


class _PassedOn(msgspec.Struct, frozen=True, kw_only=True):
    """A command that another machine passes on."""

    project_id: str
    arguments: dict[str, Any]
    caller: CallerIdentity


def _tool(handler: Handler) -> Tool:
    """The tool that a command counts as, for rights and for the audit log."""
    return Tool(
        name="exec",
        description="Run a command in a container, with the client's streams.",
        params=Exec,
        result=ExecEnded,
        scope="write",
        handler=handler,
        transports=PERSONS,
        runs_on="needed",
        enters="named",
    )


class AttachedCommands:
    """Runs commands for the clients of this machine, and for those of other machines."""

    def __init__(self, services: ToolServices) -> None:
        self._services = services
        self._attached: Counter[str] = Counter()
        """Commands that run, by session or project, and by principal."""

    async def serve(self, context: CallContext, arguments: Any, client: CommandClient) -> None:
        """Run the command that a client asks for, until it ends or the client is gone.

        What refuses or ends it is sent to the client.
        """
        try:
            try:
                async with self._services.keys.while_good(context.token_id):
                    with self._place(f"principal {context.principal}", PER_PRINCIPAL):
                        await self._serve(context, arguments, client)
            except OublietteError as error:
                await client.fail(failure(error).structured)
        except ConnectionError:
            return  # the client is gone

    async def _serve(self, context: CallContext, arguments: Any, client: CommandClient) -> None:
        nodes = self._services.nodes
        tool = _tool(partial(self._run, client))
        asked = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
        project_id = None
        # What is refused gives no project a home
        if nodes is not None and tool.allowed(context.scope, context.transport):
            project_id = await project_of(self._services, context, asked)
        for _ in range(ATTEMPTS):
            node = None
            if nodes is not None and project_id is not None:
                node = await nodes.home(project_id, needed=True)
            if nodes is None or node is None or project_id is None:
                await self._run_here(context, arguments, client)
                return
            wanted = _PassedOn(project_id=project_id, arguments=asked, caller=identity(context))
            try:
                await _run_there(nodes, node, wanted, client)
            except LivesElsewhere:
                nodes.forget(project_id)
            except ActorDead:  # the project may have another home by the next command
                nodes.forget(project_id)
                raise
            else:
                return
        raise project_moves(project_id)

    async def serve_elsewhere(self, given: bytes, end: StreamEnd) -> None:
        """Run a command for another machine; the work of a stream."""
        wanted = msgspec.msgpack.decode(given, type=_PassedOn)
        working_for.set(wanted.caller.principal)
        nodes = self._services.nodes
        if nodes is not None:
            nodes.forget(wanted.project_id)  # the other one may know better
            if await nodes.home(wanted.project_id, needed=False) is not None:
                raise LivesElsewhere(f"project {wanted.project_id} lives elsewhere")
        caller = {name: getattr(wanted.caller, name) for name in CallerIdentity.__struct_fields__}
        await self._run_here(CallContext(**caller), wanted.arguments, _FarClient(end))

    async def _run_here(self, context: CallContext, arguments: Any, client: CommandClient) -> None:
        tool = _tool(partial(self._run, client))
        await carry_out(self._services, context, tool, arguments)

    async def _run(
        self, client: CommandClient, services: ToolServices, context: CallContext, params: Exec
    ) -> ExecEnded:
        if context.is_agent:
            raise Forbidden("an agent attaches to no command", hint="container_exec runs one")
        if sum(map(len, params.command)) > LARGEST:
            raise InvalidParameter(
                f"command: may have {LARGEST} characters",
                field="command",
                hint="use standard input",
            )
        project, workspace_id = await _place_of(services, context, params)
        workspace = workspace_path(project, workspace_id)
        window = params.terminal
        command = AttachedCommand(
            argv=params.command,
            workspace=workspace,
            working_dir=params.working_dir or workspace,
            env={
                **variables(services.config.agents),
                **({"TERM": window.term} if window is not None else {}),
            },
            stdin=params.stdin,
            window=None if window is None else (window.rows, window.cols),
        )
        place = params.session_id or project.id
        with self._place(place, PER_PLACE):
            async with (
                _while_it_lives(services, params.session_id),
                container_in_use(services, project, workspace_id, KIND) as actor,
            ):
                socket = f"{actor.name.removesuffix('/container')}/socket"
                ended = await run_at(services.name_actor(socket), command, client)
        return ExecEnded(exit_code=None if ended is None else ended.status)

    @contextlib.contextmanager
    def _place(self, name: str, most: int) -> Generator[None]:
        if self._attached[name] >= most:
            raise LimitExceeded(
                f"{most} commands are attached to {name} already", hint="end one of them"
            )
        self._attached[name] += 1
        try:
            yield
        finally:
            self._attached[name] -= 1
            if not self._attached[name]:
                del self._attached[name]


async def _place_of(
    services: ToolServices, context: CallContext, params: Exec
) -> tuple[Project, str | None]:
    """Return the project of a command, and the workspace that it names."""
    if (params.session_id is None) is (params.project_id is None):
        raise InvalidParameter("give session_id or project_id, one of them", field="session_id")
    if params.session_id is not None:
        session = await visible_session(services, context, params.session_id)
        return await visible_project(services, context, session.project_id), session.workspace_id
    return (
        await visible_project(services, context, params.project_id or ""),
        params.workspace_id,
    )


class _SessionEnd:
    """Observer that ends a block by its deadline when a session's actor has ended."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self._deadline = deadline
        self.over = False
        """Whether the block has ended: a notice that was sent before still arrives."""

    def deliver(self, down: Down) -> None:
        del down
        if not self.over and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def _while_it_lives(services: ToolServices, session_id: str | None) -> AsyncGenerator[None]:
    """End the block with a session, if it is live at its beginning.

    Raises:
        Conflict: the session has ended.
    """
    session = None if session_id is None else services.find_session(session_id)
    if session is None:
        yield
        return
    deadline = asyncio.timeout(None)
    try:
        async with deadline:
            observer = _SessionEnd(deadline)
            session.watch(observer)
            try:
                yield
            finally:
                observer.over = True
                session.unwatch(observer)
    except TimeoutError as error:
        if isinstance(error, OublietteError) or not deadline.expired():
            raise
        raise Conflict("the session has ended, and the command with it") from error


class _FarClient(CommandClient):
    """A client of another machine, which has its request answered there."""

    def __init__(self, end: StreamEnd) -> None:
        self._end = end

    async def read(self) -> bytes:
        return (await self._end.receive()).data

    async def write(self, data: bytes) -> None:
        await self._end.send(data)

    async def answer(self, answer: dict[str, Any]) -> None:
        del answer  # that it runs: errors are raised, and arrive as such
        await self._end.send(_BEGUN)


async def _run_there(nodes: HomeNodes, node: str, wanted: _PassedOn, client: CommandClient) -> None:
    """Have a command run at the home of its project; frames pass as they are."""
    async with open_at_home(nodes, node, KIND, msgspec.msgpack.encode(wanted)) as stream:
        first = await stream.read()
        await client.begin()
        await until_either(
            _download(stream, client, first.removeprefix(_BEGUN)), _upload(stream, client)
        )


async def _download(stream: HomeStream, client: CommandClient, data: bytes) -> None:
    if data:
        await client.write(data)
    while data := await stream.read():
        await client.write(data)


async def _upload(stream: HomeStream, client: CommandClient) -> None:
    while data := await client.read():
        await stream.write(data)
