"""Actor of one agent session: its status, its turns, its log, its agent's requests.

State that must not be lost is in the store before it is visible to others. When the actor fails,
a new one reads the log and attaches to the agent where the log ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.agent_requests.caller_tools import KEEP_SETTLED
from oubliette.actors.agent_requests.router import AgentRequestRouter
from oubliette.actors.agent_watchdog.messages import DEADLINES
from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog, WatchInput
from oubliette.actors.messages import (
    AnswerPermission,
    EndSession,
    GetSession,
    InterruptSession,
    ReadEvents,
)
from oubliette.actors.relay.pairing import new_pairing_secret
from oubliette.actors.session import recovery
from oubliette.actors.session.agent_handle import AgentHandle
from oubliette.actors.session.agent_messages import AGENT_MESSAGES, AgentMessages
from oubliette.actors.session.effect_applier import EffectApplier
from oubliette.actors.session.effects import (
    AppendEvent,
    AskPermission,
    BeginTurn,
    DecisionStored,
    Effects,
    EndRunningTurn,
    EndTurnWatch,
    EndUndeliveredTurn,
    FollowUp,
    HearSystem,
    InterruptTurn,
    NotifyRootCaller,
    NotifyTree,
    OutcomeStored,
    ProgressStored,
    SendTools,
    WatchTurn,
)
from oubliette.actors.session.event_log import LOG_MESSAGES, EventLog, LogCommitted
from oubliette.actors.session.idle_timeout import IdleCheck, IdleTimeout
from oubliette.actors.session.keyed_turns import KeyedTurns, with_turn
from oubliette.actors.session.messages import (
    AgentAttached,
    AgentGone,
    LimitNotice,
    LinkRequest,
    LogGrown,
    NoteEvent,
    SubmittedTurn,
    SubmitTurn,
)
from oubliette.actors.session.permissions import PermissionOverdue, Permissions
from oubliette.actors.session.request_messages import REQUEST_MESSAGES, RequestMessages
from oubliette.actors.session.resources import LinkRequested, ResourcesReleased, SessionResources
from oubliette.actors.session.session_end import (
    END_LIMIT,
    LOG_STEP,
    EndOfSession,
    EndOverdue,
    RequestedEnd,
    limit_noticed,
    log_too_large,
)
from oubliette.actors.session.state import SessionActorState
from oubliette.actors.session.turn_snapshots import (
    SnapshotOverdue,
    TurnSnapshot,
    TurnSnapshots,
)
from oubliette.actors.session.wait_reasons import WaitingSession, waits_of
from oubliette.actors.session.waits import GetWaits, SessionWaits
from oubliette.actors.store.actor import Transact
from oubliette.actors.store.outages import once_back, tell_running_since
from oubliette.errors import Conflict, LimitExceeded
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, Down, Message, handles
from oubliette.kit.fair_loop import working_for
from oubliette.runtime.store.operations import PutIdempotency

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import ContainerRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.actors.session.state import SessionMemory
    from oubliette.records import Session, TurnOutcome


class SessionActor(Actor):
    """Actor of one session until it finishes; named `…/sessions/<id>`, in the SessionRegistry."""

    mailbox_size = 10_000

    def __init__(
        self,
        context: ActorContext,
        unit: ContainerRefs,
        session_id: str,
        memory: SessionMemory,
    ) -> None:
        super().__init__()
        self.context = context
        self.unit = unit
        self.session_id = session_id
        self.memory = memory
        self.state = SessionActorState(session_id)
        self.writer: EventWriter
        self.router: AgentRequestRouter
        self.applier: EffectApplier
        self.requests: RequestMessages
        self.agent_messages: AgentMessages
        self.log = EventLog(self, context, session_id, lambda: self.state.quiet)
        self.process = AgentHandle(self, context, unit, memory)
        self.resources = SessionResources(self, context, unit, memory, self.process)
        self.snapshots = TurnSnapshots(self, context)
        self.requested_end = RequestedEnd()
        self._log_told = 0
        """Size of the log at the last interrupt for it."""
        self._log_counted = 0
        """Size of the log that its tree counts."""
        self.keyed_turns = KeyedTurns()
        self.idle = IdleTimeout(context.config.sessions.idle_timeout_seconds)
        self.watchdog: AgentWatchdog
        self.permissions = Permissions(
            session_id, context.config.sessions.permission_timeout_seconds
        )

    # ------------------------------------------------------------------ life

    async def on_start(self) -> None:
        """Read the log, recover open requests and turns, start the agent or attach to it."""
        # Pending writes of an earlier actor are stored, or never will be, before this actor reads.
        context = self.context
        await once_back(lambda: context.store.ask(Transact(ops=())))
        kept = context.config.sessions.event_buffer
        settled_since = self.clock.time() - KEEP_SETTLED
        stored = await once_back(
            lambda: context.reader.run(recovery.stored, self.session_id, kept, settled_since)
        )
        if stored is None:
            self.stop()
            return
        record = stored.record
        working_for.set(stored.root.principal)  # who has started the tree
        self.writer = self.log.open(stored, kept)
        self._log_counted = self.writer.log_bytes
        self.active()
        self.state.recover(stored.turns, record.turn_count, stored.seen)
        if self.state.turn is not None:
            self.snapshots.turn_began(self.state.turn)
        self.log.show()
        self._build(stored)
        now = self.clock.time()
        self._apply(self.router.recover(stored, now))
        self._apply(self.permissions.recover(stored.permissions, self.state.turn, now))
        self.watchdog.recover(stored.open_tools, stored.turn_since)
        if self.memory.crashed_too_often(self.clock.monotonic()):
            reason = "its actor failed repeatedly; see the server log"
            self.finish(EndOfSession("agent_lost", "failed", reason))
            return
        homes = self.context.homes
        if homes is not None and (machine := homes.lost_machine(self.session_id)) is not None:
            homes.session_ended(self.session_id)
            self.finish(EndOfSession("agent_lost", "failed", f"its machine is gone ({machine})"))
            return
        self.snapshots.recovered(record, self.state.turns_done)
        if record.pairing_secret is None:  # recorded by an older release
            self.writer.change(pairing_secret=new_pairing_secret())
        self.resources.open_link(self.writer.record, stored.root.principal)
        if not self._recover_end():
            if self.state.quiet and record.process_id is None:
                self._apply(self.state.rest(record.status))
            else:
                self._run_agent()
        self.after(self.context.config.sessions.idle_timeout_seconds, IdleCheck())

    def _build(self, stored: recovery.StoredSession) -> None:
        config, runtime = self.context.config, self.context.agents.get(stored.record.agent)
        slow = runtime.slow_start if runtime is not None else ""
        self.watchdog = AgentWatchdog(config.agents, config.trees, slow)
        self.router = AgentRequestRouter(self.context, stored)
        self.applier = EffectApplier(
            self,
            self.context,
            state=self.state,
            writer=self.writer,
            silence=self.watchdog.silence,
            container=self.unit.container,
            process=self.process,
            follow_up=self._follow_up,
        )
        self.requests = RequestMessages(
            self,
            self.router,
            state=self.state,
            writer=self.writer,
            watchdog=self.watchdog,
            apply=self.applier.apply,
            active=self.active,
        )
        self.agent_messages = AgentMessages(
            self,
            self.context,
            state=self.state,
            writer=self.writer,
            log=self.log,
            process=self.process,
            watchdog=self.watchdog,
            tools=self.router.tools,
            watch_input=lambda: self._watch_input,
            apply=self.applier.apply,
            active=self.active,
        )

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        """Count a failure, and have the guest forget the process of a finished session."""
        if reason == "failed":
            self.memory.note_crash(self.clock.monotonic())
        del error
        await self.resources.forgotten(self.session_id)

    @handles(GetWaits)
    def _waits(self, _: GetWaits) -> SessionWaits:
        return waits_of(
            WaitingSession(
                config=self.context.config,
                container=self.unit.container.name,
                given=self._watch_input,
                watchdog=self.watchdog,
                permissions=self.permissions,
                router=self.router,
                starting_since=self.process.starting_since,
                unstored_since=self.log.unstored_since,
                ending_since=self.requested_end.since,
                stopping=self.stopping,
                quiet=self.state.quiet,
                rests=not self.process.wanted_before,
                active_at=self.clock.time() - self.idle.since(self.clock.monotonic()),
            )
        )

    # ------------------------------------------------------------------ the log

    @handles(LogCommitted, at_once=True)
    def _log_committed(self, message: LogCommitted) -> None:
        self.log.committed(message)
        config, size = self.context.config, self.writer.log_bytes
        limit, of_tree = config.sessions.max_log_bytes, config.trees.max_log_bytes
        if of_tree and size >= self._log_counted + min(LOG_STEP, of_tree // 20):
            self._log_counted = size
            self._apply((NotifyTree(LogGrown(session_id=self.session_id, log_bytes=size)),))
        if limit and not self.stopping and size >= max(limit, self._log_told + limit // 20):
            self._log_told = size
            self._limit_noticed(log_too_large("sessions.max_log_bytes", "session", size, limit))

    @handles(*LOG_MESSAGES)
    def _log_message(self, message: Message) -> None:
        self.log.take(message)

    @handles(GetSession)
    def _get(self, _: GetSession) -> Session:
        return self.log.record

    @handles(ReadEvents)
    def _read(self, message: ReadEvents) -> None:
        self.log.read(message, self.defer())

    # ------------------------------------------------------------------ turns

    @handles(SubmitTurn)
    def _submit(self, message: SubmitTurn) -> None:
        claim = message.idempotency
        if (earlier := self.keyed_turns.earlier(claim)) is not None:
            earlier.answer(self.defer())
            return
        limit = self.context.config.sessions.max_queued_messages
        if len(self.state.queue) >= limit:
            raise LimitExceeded(
                f"sessions.max_queued_messages: {limit} messages wait for this session already",
                hint="wait for its turns to end, or raise the limit in the configuration",
            )
        if self.stopping:
            raise self.requested_end.refusal(self.writer.record)
        answer = self.defer()
        last_index = self.writer.next_index - 1
        self._apply(self.state.submit(message.prompt, message.call_id, self.clock.time()))
        number = self.state.last_number
        warnings: tuple[str, ...] = ()
        if message.caller_id is not None or message.caller_tools is not None:
            effects, warnings = self.router.provide(
                message.caller_id,
                message.caller_tools,
                self.writer.record,
                attached=self.state.attached,
                now=self.clock.time(),
            )
            self._apply(effects)
        submitted = self.keyed_turns.add(claim)
        submitted.answer(answer)
        if claim is not None:
            self.writer.put(PutIdempotency(with_turn(claim, number, last_index)))
        self.writer.then(
            lambda: submitted.was_stored(
                SubmittedTurn(turn=number, log_end=self.writer.log_end, warnings=warnings)
            )
        )
        self.active()
        if not self.process.wanted_before:
            self._run_agent()
        self._begin_turn()

    @property
    def _held_up(self) -> bool:
        """Whether the next turn waits: for its tools to be listed, or for its snapshot."""
        return self.router.tools.awaited_since is not None or self.snapshots.awaited

    def _begin_turn(self) -> None:
        """Begin the next turn, if there is one and nothing is in its way."""
        if self.stopping:
            return  # turns that wait are not run any more, as the end of the session records
        if (waiting := self.state.waiting) is not None:
            self.snapshots.prepare(self.writer.record, waiting)
        self._apply(self.state.begin(self.writer.record.status, held_up=self._held_up))

    def _turn_ended(self) -> None:
        """Have the workspace stored as the turn has left it, before another one begins."""
        turn = self.snapshots.turn_over()
        if turn is None:
            return
        if self.state.queue:
            self.snapshots.turn_ended(self.writer.record, turn)
        else:  # the event of its end comes first
            self.writer.then(lambda: self.snapshots.turn_ended(self.writer.record, turn))

    @handles(TurnSnapshot)
    def _snapshot_taken(self, message: TurnSnapshot) -> None:
        if not self.resources.released:
            self._apply(self.snapshots.taken(message))
            self._begin_turn()

    @handles(SnapshotOverdue)
    def _snapshot_overdue(self, message: SnapshotOverdue) -> None:
        if not self.state.finished:
            self._apply(self.snapshots.overdue(message))
            self._begin_turn()

    def _apply(self, effects: Effects) -> None:
        self.applier.apply(effects)

    def _follow_up(self, effect: FollowUp) -> None:
        """Have the part that `effect` names react to what was just applied or stored."""
        match effect:
            case WatchTurn():
                self.snapshots.turn_began(effect.turn)
                self._apply(self.watchdog.turn_started(effect.turn, self._watch_input))
            case EndTurnWatch():
                self._apply(self.permissions.turn_ended(self.clock.time()))
                self.watchdog.turn_ended()
                self._turn_ended()
            case BeginTurn():
                self._begin_turn()
            case InterruptTurn():
                self.snapshots.before_interrupt(self.writer.record)
                self._apply(self.watchdog.interrupt(effect.turn))
            case EndRunningTurn():
                self._apply(self.watchdog.end_running(effect.turn, self._watch_input))
            case EndUndeliveredTurn():
                self._end_undelivered_turn()
            case AskPermission():
                self._permission_asked(effect)
            case HearSystem():
                self._apply(self.watchdog.heard("system", effect.data, self._watch_input))
            case DecisionStored():
                failpoint("session.permission_settled")
                state = self.state
                self._apply(self.permissions.stored(effect, state.turn, attached=state.attached))
            case OutcomeStored():
                failpoint("session.request_settled")
                self._apply(self.router.calls.stored(effect))
            case ProgressStored():
                self._apply(self.router.calls.progress_stored(effect))
            case SendTools():
                self._apply(self.router.tools.send(self.writer.record))
            case NotifyRootCaller():
                self._apply((self.router.root_caller(self.writer.record),))

    # ------------------------------------------------------------------ the agent

    def _run_agent(self) -> None:
        self.process.start(self.writer.record, self.state)

    @property
    def _watch_input(self) -> WatchInput:
        return WatchInput(
            record=self.writer.record,
            turn=self.state.turn,
            wall=self.clock.time(),
            now=self.clock.monotonic(),
            attached=self.state.attached,
            reachable=self.process.ref is not None,
            served=self.router.serves,
            waits=self.router.busy or self.permissions.waiting,
        )

    @handles(*AGENT_MESSAGES)
    def _agent_message(self, message: Message) -> None:
        self.agent_messages.take(message)

    @handles(AgentAttached)
    def _agent_attached(self, message: AgentAttached) -> None:
        was_attached = self.state.attached
        self._apply(self.state.agent_attached(message.stdin_accepted, started=message.started))
        if not was_attached:
            self._apply(self.permissions.attached())
        self._apply(self.watchdog.attached(self._watch_input, again=was_attached))
        self.active()
        self._begin_turn()

    def _permission_asked(self, effect: AskPermission) -> None:
        record = self.writer.record
        self._apply(
            self.permissions.asked(
                effect.data,
                effect.source,
                turn=self.state.turn,
                place=self.router.place(record),
                remembered=record.remembered,
                free=record.autonomy_chosen and record.autonomy == "off",
                event_index=self.writer.next_index,
                now=self.clock.time(),
            )
        )

    def _complete(self, outcome: TurnOutcome, text: str | None, source: str | None) -> None:
        status = self.writer.record.status
        self._apply(self.state.complete(outcome, text, source, status))
        self._begin_turn()

    def _end_undelivered_turn(self) -> None:
        """End the running turn, which was interrupted before its agent got the prompt."""
        reason = self.watchdog.given_up
        self._complete("failed" if reason else "interrupted", reason or "", None)

    @handles(*DEADLINES)
    def _deadline_over(self, message: Message) -> None:
        if not self.state.finished:
            self._apply(self.watchdog.overdue(message, self._watch_input))

    @handles(PermissionOverdue)
    def _permission_overdue(self, message: PermissionOverdue) -> None:
        if self.state.finished:
            return
        if message.running_since is None:
            tell_running_since(self, self.context.store, message.after_outage)
            return
        self._apply(self.permissions.overdue(message, self.state.turn, self.clock.time()))

    @handles(AgentGone)
    def _agent_gone(self, message: AgentGone) -> None:
        """Fail the session, as its agent has ended or cannot be used."""
        self.state.attached = False
        if self.state.finished:
            return
        status, given_up = self.writer.record.status, self.watchdog.given_up
        effects, end = self.requested_end.agent_gone(message, status, given_up)
        self._apply(effects)
        self.finish(end)

    @handles(Down)
    def _down(self, message: Down) -> None:
        if not self.process.went_down(message):
            self._apply(self.router.request_down(message, self.clock.time()))
            return
        if self.state.finished:
            return
        self.memory.note_crash(self.clock.monotonic())
        if message.reason != "failed" or self.memory.crashed_too_often(self.clock.monotonic()):
            self._agent_gone(
                AgentGone(reason=message.error or "the actor of its agent process ended")
            )
            return
        self._run_agent()
        if self.requested_end.reason is not None:
            self.process.end()

    # ------------------------------------------------------------------ its end

    @handles(EndSession)
    def _end_session(self, message: EndSession) -> None:
        if message.at_rest and self._busy:
            raise Conflict("the session has a turn to end first")
        self.resources.ending.append(self.defer())  # an ask that comes too late gets ActorDead
        effects, step = self.requested_end.requested(
            message,
            self.writer.record,
            finished=self.state.finished,
            released=self.resources.released,
        )
        self._apply(effects)
        if step == "begin":
            self._begin_end()

    def _begin_end(self) -> None:
        """End the agent, once the request is in the log: then its end counts as no failure."""
        self.snapshots.before_interrupt(self.writer.record)
        self.requested_end.begin(self.writer.record, self.clock.time())
        self._apply(self.router.cancel_all("the session was ended", self.clock.time()))
        self.after(END_LIMIT - 0.5, EndOverdue())
        self.writer.then(self._end_agent)

    def _end_agent(self) -> None:
        if self.state.finished:
            return
        if not self.process.end():
            self.finish(self.requested_end.end)

    def _recover_end(self) -> bool:
        """Continue an end that an earlier actor began; return whether there is one."""
        record = self.writer.record
        if record.ending is None:
            return False
        if record.status != "created":
            self._run_agent()  # for its last output
        self._begin_end()
        return True

    @handles(EndOverdue)
    def _end_overdue(self, _: EndOverdue) -> None:
        self._end_agent()  # a store that accepts nothing does not keep it alive
        if not self.state.finished:
            self.finish(self.requested_end.end)

    @property
    def _busy(self) -> bool:
        return self.writer.record.status == "running" or not self.state.quiet

    @handles(IdleCheck)
    def _idle_check(self, _: IdleCheck) -> None:
        left = self.idle.left(self.clock.monotonic(), busy=self._busy)
        if left > 0:
            self.after(left, IdleCheck())
        elif not self.stopping:
            self.finish(self.idle.end)

    def active(self) -> None:
        """Record activity: the session is not idle."""
        self.idle.active(self.clock.monotonic())

    @property
    def stopping(self) -> bool:
        """Whether it accepts nothing new."""
        return self.state.finished or self.requested_end.reason is not None

    @handles(LinkRequested)
    def _link_requested(self, message: LinkRequested) -> None:
        self.resources.link_requested(message, self.session_id)

    @handles(ResourcesReleased)
    def _all_released(self, _: ResourcesReleased) -> None:
        self.resources.give_back(self.session_id)
        self.stop()

    @handles(NoteEvent)
    def _note(self, message: NoteEvent) -> None:
        if not self.state.finished:
            self._apply((AppendEvent("system", {"kind": message.kind, **message.data}),))

    @handles(InterruptSession)
    def _interrupt(self, _: InterruptSession) -> str:
        self._apply(self.state.interrupt(held_up=self._held_up))
        return self.writer.record.status

    @handles(LimitNotice)
    def _limit_noticed(self, message: LimitNotice) -> None:
        """Handle a limit of its tree or project that is near or reached."""
        if self.stopping:
            return
        effects, end = limit_noticed(message)
        self._apply(effects)
        if message.action == "interrupt" and self.state.turn is not None:
            self.snapshots.before_interrupt(self.writer.record)
            self._apply(self.watchdog.interrupt(self.state.turn))
        elif end is not None:
            self.finish(end)

    def finish(self, end: EndOfSession) -> None:
        """Finish: settle open requests, write the end, then release all resources."""
        if self.state.running is None:
            self.snapshots.session_ended(self.writer.record)
        self.state.finished = True
        self._apply(self.router.cancel_all(end.reason, self.clock.time()))
        record = self.writer.record
        self.resources.process = record.process_id
        now = self.clock.time()
        self._apply(self.state.finish(end, record.status, now, final=self.requested_end.final))
        self.writer.then(lambda: self.resources.release(self.log))

    # ------------------------------------------------------------------ its requests

    @handles(LinkRequest, at_once=True)
    def _link_request(self, message: LinkRequest) -> None:
        self.active()
        self.requests.requested(message, stopping=self.stopping)

    @handles(*REQUEST_MESSAGES)
    def _request_message(self, message: Message) -> bool | None:
        return self.requests.take(message)

    @handles(AnswerPermission)
    def _permission_answered(self, message: AnswerPermission) -> bool | None:
        self.active()
        remembered, now = self.writer.record.remembered, self.clock.time()
        effects = self.permissions.answered(message, remembered, self.state.turn, now)
        if effects is None:
            return False
        answer = self.defer()
        self._apply(effects)
        self.writer.then(lambda: answer.set(True))
        return None
