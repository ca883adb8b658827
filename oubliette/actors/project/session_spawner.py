"""Start of sessions in a project: which session gets a message, its limits, and its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog

from oubliette.actors.agent_requests.caller_tools import tools_after
from oubliette.actors.container.supervisor import KeepApiKey, StartSession
from oubliette.actors.messages import CallerSeen, OpenCaller
from oubliette.actors.project.fork_conversation import as_fork
from oubliette.actors.project.new_session import describe, first_event, fork_event, key_of_agent
from oubliette.actors.project.shared_trees import joined_tree
from oubliette.actors.project.spawn_answers import SpawnAnswers, answer_for
from oubliette.actors.project.spawn_target import SpawnTarget
from oubliette.actors.session import lifecycle
from oubliette.actors.session.messages import SubmitTurn
from oubliette.actors.store.actor import Transact
from oubliette.actors.tree.messages import Reserve, Unreserve
from oubliette.actors.tree.supervisor import of_tree
from oubliette.errors import Conflict, LimitExceeded, ProjectMoves, SessionHandover
from oubliette.failpoints import failpoint
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry
from oubliette.records import Turn
from oubliette.runtime.store.operations import (
    AppendEvents,
    PutIdempotency,
    PutSession,
    PutTurn,
    PutWorkspace,
)

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import SpawnResult, SpawnSession
    from oubliette.actors.project.shared_trees import JoinedTree
    from oubliette.clock import Clock
    from oubliette.kit import Ref, System
    from oubliette.records import Event, Project, Session, Workspace
    from oubliette.runtime.store.operations import Op

log = structlog.get_logger(__name__)


class ContainersPort(Protocol):
    """A ProjectActor, as its SessionSpawner uses it."""

    system: System
    clock: Clock

    def unit_of(self, session: Session) -> Ref:
        """Return the supervisor of the container of the session; start it if there is none."""
        ...

    async def check_workspace(self, workspace_id: str) -> None:
        """Refuse what needs a workspace that cannot be used."""
        ...

    def run_again(self, session: Session) -> None:
        """Start the actor of a session that is live, unless its unit does so or has one."""
        ...


class SessionSpawner:
    """Part of a ProjectActor that handles `SpawnSession`; it has the same lifetime."""

    def __init__(self, port: ContainersPort, context: ActorContext, project: Project) -> None:
        self._port = port
        self._context = context
        self._project = project
        self._answers = SpawnAnswers(context.reader, port.clock)
        self._targets = SpawnTarget(context, project, port.clock)

    async def known(self, message: SpawnSession) -> SpawnResult | None:
        """The answer to a request that was carried out before, under its key."""
        return await self._answers.known(message)

    async def spawn(self, message: SpawnSession) -> SpawnResult:
        """Give the prompt to the session that is meant: a live, a resumed or a new one.

        Raises:
            SessionHandover: the session has no actor at the moment.
        """
        if message.caller_id is not None:
            await self._meet_caller(message)
        known = await self._answers.known(message)
        if known is not None:
            return known
        joined = await joined_tree(self._context, self._project, message)
        workspace, created = await self._targets.workspace(message)
        tree = None if joined is None else joined.tree_id
        target = await self._targets.session(message, workspace, tree)
        if target is not None and (live := self._context.session_registry.session(target.id)):
            try:
                return await self._submit(message, target, live)
            except (ActorDead, Conflict) as error:
                target = await self._context.reader.session(target.id)
                if target is None or not lifecycle.resumable(target):
                    # An actor that failed while handling our message may have accepted it: never to
                    # two. One that ends may be resumed in a moment.
                    may_go_on = isinstance(error, ActorDead | SessionHandover)
                    if message.session_id is not None or may_go_on:
                        raise
                    target = None
        if target is not None and lifecycle.live(target):
            # Read again: it may have ended, and left the registry, since it was read.
            target = await self._context.reader.session(target.id)
            if target is not None and lifecycle.live(target):
                self._port.run_again(target)
            raise SessionHandover("the session is changing hands", hint="try again in a moment")
        self._check_may_begin(message)
        if target is not None:
            await self._port.check_workspace(target.workspace_id)
            return await self._resume(message, target)
        assert workspace is not None
        if not created:
            await self._port.check_workspace(workspace.id)
        return await self._new(message, workspace, joined, created=created)

    async def _submit(self, message: SpawnSession, target: Session, live: Ref) -> SpawnResult:
        result = answer_for(target, turn=0, log_end=-1)
        submitted = await live.ask(
            SubmitTurn(
                prompt=message.prompt,
                caller_id=message.caller_id,
                caller_tools=message.caller_tools,
                call_id=message.call_id,
                idempotency=self._answers.claim(message, result),
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
        name = await ask_with_retry(lambda: self._port.system.ref("callers").ask(opened))
        self._port.system.ref(name).tell(CallerSeen())

    def _check_may_begin(self, message: SpawnSession) -> None:
        """Begin nothing on a node that is drained but what a running turn needs for its end."""
        homes = self._context.homes
        if homes is not None and homes.draining and message.parent_session_id is None:
            raise ProjectMoves(
                f"project {self._project.id} moves to another node once its turns have ended",
                hint="try again in a moment",
            )

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
        opened = await of_tree(self._context, session)
        place = Reserve(
            session_id=session.id,
            depth=session.depth,
            new=new,
            root_session_id=session.root_session_id,
            tree_limits=session.tree_limits,
            limits=session.limits,
        )

        async def reserve() -> Ref:
            tree = self._port.system.ref(await self._port.system.ref("trees").ask(opened))
            await tree.ask(place)
            return tree

        return await ask_with_retry(reserve)

    async def _resume(self, message: SpawnSession, target: Session) -> SpawnResult:
        if target.depth == 0:
            await self._check_room()
        tree = await self._reserve(target, new=False)
        target = await self._context.reader.with_tools(target)
        caller_id, tools = tools_after(target, message.caller_id, message.caller_tools)
        session = msgspec.structs.replace(
            target,
            status=lifecycle.after(target.status, "resumed"),
            status_reason=None,
            ended_at=None,
            process_id=None,
            caller_id=caller_id,
            caller_tools=tools,
            **key_of_agent(message),
        )
        return await self._record(message, session, tree, resumed=True)

    async def _new(
        self,
        message: SpawnSession,
        workspace: Workspace,
        joined: JoinedTree | None,
        *,
        created: bool,
    ) -> SpawnResult:
        now = self._port.clock.time()
        make = created and message.fork is None and message.branch_from is None
        session = await describe(
            self._context,
            self._project,
            message,
            workspace,
            now,
            joined=joined,
            new=make,
        )
        transcript = ""
        if message.fork is not None:
            session, transcript = await as_fork(self._context, message.fork, session)
        if session.depth == 0:
            await self._check_room()
        tree = await self._reserve(session, new=True)
        used = msgspec.structs.replace(workspace, last_session_at=self._port.clock.time())
        try:
            if make:
                await self._targets.make(workspace)
            if created:
                await self._port.check_workspace(workspace.id)
        except BaseException:
            tree.tell(Unreserve(session_id=session.id, new=True))
            if make:
                await self._targets.take_back(workspace)
            raise
        try:
            return await self._record(
                message, session, tree, PutWorkspace(used), created=created, transcript=transcript
            )
        except BaseException:
            if make:
                await self._targets.take_back(workspace)
            raise

    async def _record(
        self,
        message: SpawnSession,
        session: Session,
        tree: Ref,
        *more: Op,
        created: bool = False,
        resumed: bool = False,
        transcript: str = "",
    ) -> SpawnResult:
        """Store the session, its first turn and `more`, then run it."""
        turn = Turn(
            session_id=session.id,
            number=session.turn_count + 1,
            prompt=message.prompt,
            state="queued",
            created_at=self._port.clock.time(),
            call_id=message.call_id,
            context=transcript,
        )
        session = msgspec.structs.replace(
            session, turn_count=turn.number, last_prompt=message.prompt
        )
        try:
            log_end = await self._context.reader.last_index(session.id) if resumed else -1
            events = await self._first_events(message, session, log_end, resumed=resumed)
            result = answer_for(
                session,
                turn=turn.number,
                log_end=events[-1].index,
                created=created,
                spawned=not resumed,
                resumed=resumed,
            )
            if message.fork is not None:
                result = msgspec.structs.replace(
                    result, fork=message.fork, conversation=session.conversation
                )
            claim = self._answers.claim(message, result)
            put = PutSession(session, session.caller_tools)
            ops = (*more, put, PutTurn(turn), AppendEvents(events))
            if message.api_key is not None:
                await self._hand_over_key(session, message.api_key)
            await self._context.store.ask(
                Transact(ops=ops if claim is None else (*ops, PutIdempotency(claim)))
            )
        except BaseException:
            if message.api_key is not None:
                forget = KeepApiKey(session_id=session.id, api_key=None)
                self._port.unit_of(session).tell(forget)
            tree.tell(Unreserve(session_id=session.id, new=not resumed))
            raise
        failpoint("project.session_recorded")
        try:
            await self._run(session, resumed=resumed)
        except ActorDead:
            log.info("its unit restarts, and finds it in the store", session_id=session.id)
        return result

    async def _first_events(
        self, message: SpawnSession, session: Session, log_end: int, *, resumed: bool
    ) -> tuple[Event, ...]:
        now = self._port.clock.time()
        above = session.parent_session_id
        parent = None if above is None else await self._context.reader.session(above)
        first = first_event(session, parent, log_end + 1, now, resumed=resumed)
        if message.fork is None:
            return (first,)
        return first, fork_event(session, message.fork, first.index + 1, now)

    async def _run(self, session: Session, *, resumed: bool) -> None:
        unit = self._port.unit_of(session)
        await unit.ask(StartSession(session_id=session.id, resumed=resumed))

    async def _hand_over_key(self, session: Session, api_key: str | None) -> None:
        keep = KeepApiKey(session_id=session.id, api_key=api_key)
        unit = self._port.unit_of(session)
        await ask_with_retry(lambda: unit.ask(keep))
