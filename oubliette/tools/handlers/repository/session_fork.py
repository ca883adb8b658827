"""Tool `session_fork`: new sessions that begin where another one was."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from oubliette.actors.messages import Idempotency, SessionFork, SpawnSession
from oubliette.contract import field_types
from oubliette.contract.agent_options import AgentOptions
from oubliette.errors import NotFound, OublietteError, SessionHandover
from oubliette.kit.retry import ask_with_retry
from oubliette.records import AgentChoice, same_fields
from oubliette.runtime.snapshots.history_records import ForkAnswer, ForkQuestion
from oubliette.runtime.snapshots.snapshot_names import last_turn
from oubliette.tools.handlers.projects import check_offer
from oubliette.tools.handlers.repository.agent_commits import ask_history, seconds_for
from oubliette.tools.handlers.repository.session_diff import DiffPoint
from oubliette.tools.handlers.sessions import HANDOVER_SECONDS, visible_session
from oubliette.tools.spawn_options import (
    agent_api_key,
    branch_in,
    claim,
    provided_tools,
    shared_tree,
)
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.actors.messages import SpawnResult
    from oubliette.kit import Ref
    from oubliette.records import Session
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MAX_COUNT: Final = 50
AT_ONCE: Final = 4
"""Forks of one call that are made at a time."""


class ForkSession(AgentOptions, frozen=True, kw_only=True):
    """Parameters of `session_fork`."""

    session_id: Annotated[
        field_types.SessionId, Meta(description="Session to fork; it may run, or have ended.")
    ]
    prompt: Annotated[field_types.Prompt, Meta(description="The first message to each new agent.")]
    at_turn: Annotated[
        DiffPoint | None,
        Meta(
            description="The end of this turn, or a snapshot by its name in session_log. Unset: the"
            " newest snapshot, while a turn runs that before it."
        ),
    ] = None
    count: Annotated[
        int, Meta(ge=1, le=MAX_COUNT, description="Number of new sessions, each with a workspace.")
    ] = 1
    large_files: Annotated[
        bool,
        Meta(
            description="Copy files above snapshots.max_file_bytes too, as far as the workspace of"
            " the session still has them as they were."
        ),
    ] = False


class ForkError(Result, frozen=True, kw_only=True):
    """Reason why a session was not started."""

    code: str
    message: str
    hint: Annotated[str | None, Meta(description="A remedy.")] = None


class ForkedSession(Result, frozen=True, kw_only=True):
    """One of the new sessions, or the reason why there is none."""

    session_id: str | None
    workspace_id: str | None = None
    branch: Annotated[
        str | None, Meta(description="Its branch, in a project with a repository.")
    ] = None
    status: str | None = None
    last_index: Annotated[
        int | None, Meta(description="since_index for session_events that returns what follows.")
    ] = None
    conversation: Annotated[
        str | None,
        Meta(
            description="native: the agent itself knows the conversation; transcript: it got a"
            " record of it before the prompt."
        ),
    ] = None
    missing_count: Annotated[
        int, Meta(description="Files that are not as they were, as no snapshot has their content.")
    ] = 0
    missing: dict[str, str] = {}
    error: ForkError | None = None


class Forked(Result, frozen=True, kw_only=True):
    """Result of `session_fork`."""

    project_id: str
    forked_from: str
    forked_at: Annotated[
        str | None, Meta(description="Snapshot; null: the workspace always was empty.")
    ]
    forked_at_turn: Annotated[int, Meta(description="Last turn of the conversation; 0: none.")]
    sessions: tuple[ForkedSession, ...]
    started: Annotated[int, Meta(description="Number of them that were started.")]


@tool(ForkSession, Forked, scope="write", runs_on="needed", enters="new")
async def session_fork(services: ToolServices, context: CallContext, params: ForkSession) -> Forked:
    """Start sessions that begin with the files and the conversation of a session at a turn.

    Each has a workspace of its own and starts or fails alone. Compare them with session_compare.
    """
    session = await visible_session(services, context, params.session_id)
    check_offer(services, "agent", params.agent or session.agent)
    fork = await _fork_point(services, session, params)
    forks = _Forks(services, context, params, session, fork)
    sessions = await forks.start()
    return Forked(
        project_id=session.project_id,
        forked_from=session.id,
        forked_at=fork.snapshot,
        forked_at_turn=fork.turn,
        sessions=sessions,
        started=sum(each.error is None for each in sessions),
    )


async def _fork_point(services: ToolServices, session: Session, params: ForkSession) -> SessionFork:
    point = params.at_turn
    open_turns = await services.reader.turns(session.id, ("queued", "running"))
    running = min((each.number for each in open_turns), default=None)
    question = ForkQuestion(session_id=session.id, point=point, before_turn=running)
    answer = await ask_history(services, session, question)
    assert isinstance(answer, ForkAnswer)
    found = answer.snapshot
    turn = _turn_without_files(session, point) if found is None else last_turn(found)
    if running is not None:
        turn = min(turn, running - 1)
    return SessionFork(
        session_id=session.id,
        workspace_id=session.workspace_id,
        snapshot=None if found is None else found.name,
        turn=turn,
        large_files=params.large_files,
    )


def _turn_without_files(session: Session, point: int | str | None) -> int:
    """The turn that is meant in a workspace that always was empty."""
    if point is None:
        return session.turn_count
    turn = int(point) if str(point).isdecimal() else -1
    if not 0 <= turn <= session.turn_count:
        raise NotFound(
            f"at_turn: there is no snapshot of {point}: the workspace always was empty",
            hint=f"give a turn up to {session.turn_count}",
        )
    return turn


class _Forks:
    """One call of `session_fork`."""

    def __init__(
        self,
        services: ToolServices,
        context: CallContext,
        params: ForkSession,
        session: Session,
        fork: SessionFork,
    ) -> None:
        self._services = services
        self._context = context
        self._params = params
        self._session = session
        self._fork = fork
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._claim = claim("session_fork", params)

    async def start(self) -> tuple[ForkedSession, ...]:
        """Start all; each answer is that of its own session.

        Raises:
            InvalidParameter: the parameters contradict each other.
        """
        params = self._params
        shared_tree(self._context, params, None)
        project_id = self._session.project_id
        await provided_tools(self._services, self._context, params, project_id)
        project = await self._services.project_ref(self._session.project_id)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._one(project, number)) for number in range(params.count)
            ]
        return tuple(task.result() for task in tasks)

    async def _one(self, project: Ref, number: int) -> ForkedSession:
        async with self._slots:
            try:
                answer = await self._spawned(project, number)
            except OublietteError as error:
                refusal = ForkError(code=error.code, message=error.message, hint=error.hint)
                return ForkedSession(session_id=None, error=refusal)
        fork = answer.fork or self._fork
        project_id, workspace_id = self._session.project_id, answer.workspace_id
        return ForkedSession(
            session_id=answer.session_id,
            workspace_id=workspace_id,
            branch=await branch_in(self._services, project_id, workspace_id),
            status=answer.status,
            last_index=answer.last_index,
            conversation=answer.conversation,
            missing_count=fork.missing_count,
            missing=fork.missing,
        )

    async def _spawned(self, project: Ref, number: int) -> SpawnResult:
        services, context, params = self._services, self._context, self._params
        project_id = self._session.project_id
        caller_id, tools = await provided_tools(services, context, params, project_id)
        async with agent_api_key(services, context, params, self._session.project_id) as key:
            message = SpawnSession(
                principal=context.principal,
                prompt=params.prompt,
                create_workspace=True,
                new_session=True,
                caller_id=caller_id,
                caller_tools=tools,
                **same_fields(params, AgentChoice),
                api_key=key.text,
                minted_token_id=key.token_id,
                given_token_id=key.given_id,
                parent_session_id=context.session_id,
                tree=shared_tree(context, params, None),
                idempotency=self._claim_of(number),
                fork=self._fork,
            )
            answer = await ask_with_retry(
                lambda: project.ask(message, timeout=seconds_for(services)),
                SessionHandover,
                seconds=HANDOVER_SECONDS,
            )
            await key.bind_to(answer.session_id)
        return answer

    def _claim_of(self, number: int) -> Idempotency | None:
        if self._claim is None:
            return None
        return msgspec.structs.replace(self._claim, key=f"{self._claim.key}#{number}")
