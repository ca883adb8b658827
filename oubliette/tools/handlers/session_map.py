"""The tool `session_map` of callers: many prompts at once, with their answers in order.

Agents have the same as a base tool on their own link (`actors/agent_requests/session_map.py`). Both
leave to `actors/fan_out.py` which message runs when.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.fan_out import FanOut
from oubliette.actors.messages import EndSession, ReadEvents, SessionEvents
from oubliette.contract import session_tools
from oubliette.contract.agent_options import (
    AgentSettings,
    MapMessage,
    MapResult,
    MapResults,
    SessionMap,
)
from oubliette.errors import (
    Forbidden,
    InvalidParameter,
    LimitExceeded,
    NotFound,
    OublietteError,
    Unauthenticated,
    Unavailable,
)
from oubliette.kit import ActorDead
from oubliette.records import TERMINAL
from oubliette.runtime.agents.memory import need_of
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.session_end import END_SECONDS
from oubliette.tools.handlers.session_spawn import SessionSpawn, spawn
from oubliette.tools.spec import CALLERS, Transport, tool

if TYPE_CHECKING:
    from oubliette.records import Project
    from oubliette.tools.handlers.session_spawn import Spawned
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

ASK_MARGIN: Final = 30.0
AT_CALLERS: Final[frozenset[Transport]] = CALLERS | frozenset[Transport]({"control"})


@tool(
    SessionMap, MapResults, scope="write", transports=AT_CALLERS, runs_on="needed", enters="named"
)
async def session_map(
    services: ToolServices, context: CallContext, params: SessionMap
) -> MapResults:
    """Send many prompts to one new session each and wait for all answers.

    A failed one does not stop the others. A session is stopped after its answer; a message resumes
    it. If the call is cancelled, the running sessions continue; the same call with the same
    idempotency_key waits for them again.
    """
    project = await visible_project(services, context, params.project_id)
    return MapResults(results=await _Map(services, context, params, project).run())


class _Map:
    """One call of `session_map`."""

    def __init__(
        self, services: ToolServices, context: CallContext, params: SessionMap, project: Project
    ) -> None:
        self._services = services
        self._context = context
        self._params = params
        self._project = project
        self._project_id = project.id
        limit = min(params.max_parallel, self._fitting())
        self._order = FanOut[MapResult](len(params.messages), limit)

    async def run(self) -> tuple[MapResult, ...]:
        try:
            async with asyncio.TaskGroup() as group:
                self._go_on(group)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return self._order.in_order()

    def _go_on(self, group: asyncio.TaskGroup) -> None:
        while (number := self._order.start()) is not None:
            group.create_task(self._part(number, group))

    def _fitting(self) -> int:
        """The number of agents that fit into the memory of one container."""
        services, project = self._services, self._project
        room = services.imaging.memory_mb(project) if services.imaging is not None else None
        if room is None or project.workspace_isolation:
            return session_tools.MAX_PARTS
        agent = self._params.agent or project.agent or services.config.agents.default
        if agent == "auto":
            agent = services.offers.agents[0]
        return max(room // need_of(services.config, agent), 1)

    async def _part(self, number: int, group: asyncio.TaskGroup) -> None:
        try:
            spawned = await self._start(number)
        except (InvalidParameter, Forbidden, Unauthenticated):
            raise  # the same error would meet every message
        except OublietteError as error:
            if isinstance(error, LimitExceeded) and self._order.no_room(number):
                return
            refused = MapResult(session_id=None, status="refused", result=None, error=str(error))
            self._order.answer(number, refused, room=False)
        else:
            await self._turn_end(spawned.session_id, spawned.last_index)
            result = msgspec.structs.replace(
                await self._result(spawned.session_id),
                workspace_id=spawned.workspace_id,
                branch=spawned.branch,
            )
            self._order.answer(number, result, room=True)
        self._go_on(group)

    async def _start(self, number: int) -> Spawned:
        """Start the session of a message."""
        params = self._spawn_params(number)
        return await spawn(
            self._services,
            self._context,
            params,
            self._project_id,
            params.prompt,
            name="session_map",
        )

    def _spawn_params(self, number: int) -> SessionSpawn:
        given = self._params.messages[number]
        item = MapMessage(message=given) if isinstance(given, str) else given
        shared = {name: getattr(self._params, name) for name in AgentSettings.__struct_fields__}
        key = self._params.idempotency_key
        shared |= {
            "new_session": True,
            "idempotency_key": None if key is None else f"{key}#{number}",
            "create_workspace": item.create_workspace or self._params.create_workspace,
            "workspace_id": item.workspace_id
            or (None if item.create_workspace else self._params.workspace_id),
        }
        return SessionSpawn(project_id=self._project_id, prompt=item.message, **shared)

    async def _turn_end(self, session_id: str, since: int) -> None:
        """Wait until its agent has answered, or has ended."""
        record = await self._services.owned(session_id)
        wait = 0.0  # the turn may have ended already
        while True:
            if self._context.transport in CALLERS and self._params.caller_id is not None:
                await self._services.caller_seen(record.principal, self._params.caller_id)
            reading = ReadEvents(since_index=since, max_events=1, wait_seconds=wait)
            try:
                found: SessionEvents = await self._services.ask_session(
                    session_id, reading, wait + ASK_MARGIN
                )
            except (ActorDead, NotFound, Unavailable):
                session = await self._services.reader.session(session_id)
                if session is None or session.status in TERMINAL:
                    return
                continue
            if found.turn_done:
                return
            since = found.log_end
            # In slices: a caller that waits here is present.
            wait = self._services.config.callers.poll_grace_seconds / 2

    async def _result(self, session_id: str) -> MapResult:
        reader = self._services.reader
        turn = await reader.turn(session_id, 1)
        session = await reader.session(session_id)
        if turn is None or session is None:
            return MapResult(
                session_id=session_id, status="failed", result=None, error="it was removed"
            )
        await self._put_to_rest(session_id)
        if turn.outcome == "completed":
            return MapResult(
                session_id=session_id, status="completed", result=turn.result or "", error=None
            )
        ended = session.status if session.status in {"failed", "timed_out"} else None
        return MapResult(
            session_id=session_id,
            status=turn.outcome or ended or "failed",
            result=None,
            error=turn.result or session.status_reason or "the turn did not end",
        )

    async def _put_to_rest(self, session_id: str) -> None:
        ending = EndSession(
            session_id=session_id, reason="its part of session_map is done", final=False
        )
        try:
            await self._services.ask_session(session_id, ending, END_SECONDS)
        except (ActorDead, NotFound, Unavailable, TimeoutError):
            return  # it is stopped already, or will be after its idle timeout
