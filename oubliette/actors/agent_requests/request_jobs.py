"""Jobs that a session starts for its agent's requests: what they ask of the store and of actors.

A job runs beside the mailbox of its session; its outcome is a message to the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.actors.agent_requests.params import (
    OutcomeError,
    base_params,
    rpc_error,
    text_param,
)
from oubliette.actors.agent_requests.session_events import session_events
from oubliette.actors.container.messages import GetMemoryRoom
from oubliette.actors.messages import OpenProject, SpawnResult, SpawnSession
from oubliette.actors.open_calls import OPEN_CALLS, OpenCallIds, ReserveCall
from oubliette.actors.session.messages import CallCounted, ChildSpawned, LinkAnswered, MapSlots
from oubliette.contract.session_tools import EventsParams
from oubliette.errors import InvalidParameter, NotFound, SessionHandover
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.agents.memory import need_of
from oubliette.runtime.repositories.workspace_clone import branch_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from oubliette.actors.agent_requests.caller_tools import PendingRpc
    from oubliette.actors.context import ActorContext, AgentTools
    from oubliette.actors.session.effects import (
        AskMapSlots,
        ReadOutcome,
        ReportOpenCalls,
        ReserveOpenCall,
        ServeRequest,
        SpawnChild,
    )
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.kit import Actor, Ref

ROOM_SECONDS: Final = 5.0  # for the container's actor to report its memory
ASK_SECONDS: Final = 30.0
COPY_SECONDS: Final = 300.0  # for a workspace that is cloned or copied
RESTART_SECONDS: Final = 10.0  # for the project's actor to be restarted


class RequestJobs:
    """Jobs of one session's actor, which end with it."""

    __slots__ = ("_actor", "_container", "_context", "_writer")

    def __init__(
        self, actor: Actor, context: ActorContext, writer: EventWriter, container: Ref
    ) -> None:
        self._actor = actor
        self._context = context
        self._writer = writer
        self._container = container

    def serve(self, request: ServeRequest) -> None:
        match request.method:
            case "session_events":
                self._answer(request.rpc, self._session_events(request))
            case "oubliette_tools":
                self._answer(request.rpc, self._oubliette_tools(request.params))
            case _:
                self._answer(request.rpc, self._oubliette_call_tool(request.params))

    def read_outcome(self, read: ReadOutcome) -> None:
        """Read the outcome of a call that was settled before."""
        self._answer(read.rpc, self._outcome(read.request_id))

    def spawn_child(self, spawn: SpawnChild) -> None:
        """Ask the project for a child, or for a turn of one."""

        async def ask() -> ChildSpawned:
            return await self._ask_project(spawn)

        self._actor.pipe_to_self(
            # The call id makes this safe, over a restart of the project too.
            ask_with_retry(ask, (ActorDead, SessionHandover), seconds=RESTART_SECONDS),
            lambda spawned: spawned,
            lambda error: ChildSpawned(call_id=spawn.call_id, error=rpc_error(error)),
        )

    def _answer(self, rpc: PendingRpc, work: Awaitable[Any]) -> None:
        self._actor.pipe_to_self(
            work,
            lambda result: _answered(rpc, result=result),
            lambda error: _answered(rpc, error=rpc_error(error)),
        )

    # ------------------------------------------------------------------ sessions of its tree

    async def _ask_project(self, spawn: SpawnChild) -> ChildSpawned:
        record, system = self._writer.record, self._actor.system
        own = spawn.own_workspace or spawn.branch
        name = await system.ref("projects").ask(OpenProject(project_id=record.project_id))
        spawned: SpawnResult = await system.ref(name).ask(
            SpawnSession(
                principal=record.principal,
                prompt=spawn.message,
                session_id=spawn.session_id,
                workspace_id=None if own else record.workspace_id,
                create_workspace=own,
                branch_from=record.workspace_id if spawn.branch else None,
                new_session=spawn.session_id is None,
                caller_id=record.caller_id,
                caller_tools=record.caller_tools,
                parent_session_id=record.id,
                call_id=f"{record.id}/{spawn.call_id}",
            ),
            timeout=COPY_SECONDS if own else ASK_SECONDS,
        )
        turn = await self._context.reader.turn(spawned.session_id, spawned.turn)
        branch = None
        if spawn.branch:
            project = await self._context.reader.project(record.project_id)
            if project is not None and project.repository is not None:
                branch = branch_of(spawned.workspace_id, default=False)
        return ChildSpawned(
            call_id=spawn.call_id,
            session_id=spawned.session_id,
            spawned=spawned.spawned,
            done=turn is not None and turn.state == "done",
            outcome=turn.outcome if turn else None,
            result=turn.result if turn else None,
            workspace_id=spawned.workspace_id if spawn.branch else None,
            branch=branch,
        )

    async def _session_events(self, request: ServeRequest) -> dict[str, Any]:
        asked = base_params(EventsParams, request.params, "session_events")
        asker = self._writer.record
        return await session_events(self._context, asker, asked, bare=request.bare)

    def ask_map_slots(self, asked: AskMapSlots) -> None:
        """Ask for how many more agents of this session's kind its container has memory."""
        context, agent, call_id = self._context, self._writer.record.agent, asked.call_id
        need = need_of(context.config, agent, context.agents.get(agent))
        self._actor.ask_to_self(
            self._container,
            GetMemoryRoom(memory_mb=need),
            lambda fitting: MapSlots(call_id=call_id, fitting=fitting),
            lambda _: MapSlots(call_id=call_id),  # each agent waits for memory at its own start
            ROOM_SECONDS,
        )

    # ------------------------------------------------------------------ calls of caller tools

    def reserve_call(self, reserve: ReserveOpenCall) -> None:
        """Ask the owner of the principal's limit for one more call."""
        actor, request_id = self._actor, reserve.request_id
        owner = actor.system.ref(OPEN_CALLS)
        reservation = ReserveCall(
            principal=self._writer.record.principal,
            session=actor.name,
            incarnation=actor.ref.incarnation,
            request_id=request_id,
        )
        if reserve.again:
            actor.pipe_to_self(
                ask_with_retry(lambda: owner.ask(reservation)),
                lambda _: CallCounted(request_id=request_id),
                lambda error: CallCounted(request_id=request_id, error=rpc_error(error)),
            )
            return
        actor.ask_to_self(
            owner,
            reservation,
            lambda _: CallCounted(request_id=request_id),
            lambda error: CallCounted(
                request_id=request_id, error=rpc_error(error), again=isinstance(error, ActorDead)
            ),
        )

    def report_calls(self, report: ReportOpenCalls) -> None:
        """Send the owner of the principal's limit all open calls, over a restart of it too."""
        actor = self._actor
        owner = actor.system.ref(OPEN_CALLS)
        open_calls = OpenCallIds(
            principal=self._writer.record.principal,
            session=actor.name,
            incarnation=actor.ref.incarnation,
            request_ids=report.request_ids,
            reserving=report.reserving,
        )
        counted = CallCounted(request_id="")  # of none: nothing follows from it
        actor.pipe_to_self(
            ask_with_retry(lambda: owner.ask(open_calls)), lambda _: counted, lambda _: counted
        )

    async def _outcome(self, request_id: str) -> Any:
        request = await self._context.reader.request(request_id)
        if request is None or request.outcome is None:
            raise NotFound("this call is not known any more")
        if request.outcome != "result":
            raise OutcomeError(request.outcome, request.error)
        return request.result

    # ------------------------------------------------------------------ Oubliette's own tools

    async def _oubliette_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        tools = self._agent_tools()
        key = text_param(params, "api_key", 512)
        return {"tools": await tools.tools(key, self._writer.record.id)}

    async def _oubliette_call_tool(self, params: dict[str, Any]) -> dict[str, Any]:
        tools = self._agent_tools()
        key = text_param(params, "api_key", 512)
        tool = text_param(params, "tool", 256)
        arguments = params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise InvalidParameter("arguments: must be an object", field="arguments")
        return await tools.call(
            key, self._writer.record.id, tool, cast("dict[str, Any]", arguments)
        )

    def _agent_tools(self) -> AgentTools:
        if self._context.agent_tools is None:
            raise NotFound("this server offers no tools of its own to agents")
        return self._context.agent_tools


def _answered(
    rpc: PendingRpc, result: Any = None, error: dict[str, Any] | None = None
) -> LinkAnswered:
    return LinkAnswered(
        link=rpc.link, generation=rpc.generation, id=rpc.id, result=result, error=error
    )
