"""Actor of one agent session: its status, its turns, its log, its agent's requests.

State that must not be lost is in the store before it is visible to others. When the actor fails,
a new one reads the log and attaches to the agent where the log ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.agent_requests.call_progress import ProgressDue
from oubliette.actors.agent_requests.caller_tools import KEEP_SETTLED, new_pairing_secret
from oubliette.actors.agent_requests.request_input import RequestInput
from oubliette.actors.agent_requests.router import AgentRequestRouter
from oubliette.actors.agent_requests.tool_listing import ListingOverdue
from oubliette.actors.agent_watchdog.messages import DEADLINES
from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog, WatchInput
from oubliette.actors.container.messages import StageChanged
from oubliette.actors.messages import (
    AnswerCallerTool,
    AnswerPermission,
    EndSession,
    GetSession,
    InterruptSession,
    ReadEvents,
    ReportCallProgress,
)
from oubliette.actors.open_calls import ReportCalls
from oubliette.actors.session import recovery
from oubliette.actors.session.agent_handle import AgentHandle
from oubliette.actors.session.agent_output import effects_of
from oubliette.actors.session.effect_applier import EffectApplier
from oubliette.actors.session.effects import (
    AskPermission,
    BeginTurn,
    CallStored,
    DecisionStored,
    Effects,
    EndRunningTurn,
    EndTurnWatch,
    EndUndeliveredTurn,
    FollowUp,
    HearSystem,
    InterruptTurn,
    NotifyRootCaller,
    ProgressStored,
    SendTools,
    WatchTurn,
)
from oubliette.actors.session.event_log import LOG_MESSAGES, EventLog, LogCommitted
from oubliette.actors.session.idle_timeout import IdleCheck, IdleTimeout
from oubliette.actors.session.messages import (
    AgentAttached,
    AgentGone,
    AgentOutput,
    AgentStarting,
    AgentStartProgress,
    AgentWrites,
    CallReserved,
    ChildSpawned,
    ChildTurnEnded,
    ClientPaired,
    IsBlocked,
    LimitNotice,
    LinkAnswered,
    LinkReady,
    LinkRequest,
    MapRoom,
    OutputEvent,
    OutputRefused,
    RequestSettled,
    RootCaller,
    StdinFrame,
    SubmittedTurn,
    SubmitTurn,
    ToolsNotListed,
)
from oubliette.actors.session.permissions import PermissionOverdue, Permissions
from oubliette.actors.session.resources import LinkRequested, ResourcesReleased, SessionResources
from oubliette.actors.session.session_end import (
    END_LIMIT,
    EndOfSession,
    EndOverdue,
    RequestedEnd,
    limit_noticed,
)
from oubliette.actors.session.start_progress import stage_event
from oubliette.actors.session.state import SessionActorState
from oubliette.actors.session.wait_reasons import WaitingSession, waits_of
from oubliette.actors.session.waits import GetWaits, SessionWaits
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, LimitExceeded
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, Down, Message, handles
from oubliette.runtime.agents.handshake_adapter import FRAMES
from oubliette.runtime.store.operations import PutIdempotency

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import UnitRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.actors.session.memory import SessionMemory
    from oubliette.records import Session


class SessionActor(Actor):
    """Actor of one session until it finishes; named `…/sessions/<id>`, in the SessionRegistry."""

    mailbox_size = 10_000

    def __init__(
        self,
        context: ActorContext,
        unit: UnitRefs,
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
        self.link: AgentRequestRouter
        self.applier: EffectApplier
        self.log = EventLog(self, context, session_id, lambda: self.state.quiet)
        self.process = AgentHandle(self, context, unit, memory)
        self.resources = SessionResources(self, context, unit, memory, self.process)
        self.requested_end = RequestedEnd()
        self.idle = IdleTimeout(context.config.sessions.idle_timeout_seconds)
        self.watchdog: AgentWatchdog
        self.permissions = Permissions(
            session_id, context.config.sessions.permission_timeout_seconds
        )

    # ------------------------------------------------------------------ life

    async def on_start(self) -> None:
        """Read the log, recover open requests and turns, start the agent or attach to it."""
        # Pending writes of an earlier actor are stored, or never will be, before this actor reads.
        await self.context.store.ask(Transact(ops=()))
        kept = self.context.config.sessions.event_buffer
        settled_since = self.clock.time() - KEEP_SETTLED
        stored = await self.context.reader.run(
            recovery.stored, self.session_id, kept, settled_since
        )
        if stored is None:
            self.stop()
            return
        record = stored.record
        self.writer = self.log.open(stored, kept)
        self.active()
        self.state.recover(stored.turns, record.turn_count, stored.seen)
        self.log.show()
        config, runtime = self.context.config, self.context.agents.get(record.agent)
        slow = runtime.slow_start if runtime is not None else ""
        self.watchdog = AgentWatchdog(config.agents, config.trees, slow)
        self.link = AgentRequestRouter(self.context, stored)
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
        now = self.clock.time()
        self._apply(self.link.recover(stored, now))
        self._apply(self.permissions.recover(stored.permissions, self.state.turn, now))
        self.watchdog.recover(stored.open_tools, stored.turn_since)
        if self.memory.crashed_too_often(self.clock.monotonic()):
            reason = "its actor failed repeatedly; see the server log"
            self.finish(EndOfSession("agent_lost", "failed", reason))
            return
        if record.pairing_secret is None:  # recorded by an older release
            self.writer.change(pairing_secret=new_pairing_secret())
        self.resources.open_link(self.writer.record)
        if not self._recover_end():
            self._run_agent()
        self.after(self.context.config.sessions.idle_timeout_seconds, IdleCheck())

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
                link=self.link,
                starting_since=self.process.starting_since,
                unstored_since=self.log.unstored_since,
                ending_since=self.requested_end.since,
                stopping=self.stopping,
                quiet=self.state.quiet,
                active_at=self.clock.time() - self.idle.since(self.clock.monotonic()),
            )
        )

    # ------------------------------------------------------------------ the log

    @handles(LogCommitted, at_once=True)
    def _log_committed(self, message: LogCommitted) -> None:
        self.log.committed(message)

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
        limit = self.context.config.sessions.max_queued_messages
        if len(self.state.queue) >= limit:
            raise LimitExceeded(
                f"sessions.max_queued_messages: {limit} messages wait for this session already",
                hint="wait for its turns to end, or raise the limit in the configuration",
            )
        if self.stopping:
            raise Conflict("the session is ending", hint="start another one")
        answer = self.defer()
        self._apply(self.state.submit(message.prompt, message.call_id, self.clock.time()))
        number = self.state.last_number
        warnings: tuple[str, ...] = ()
        if message.caller_id is not None or message.caller_tools is not None:
            effects, warnings = self.link.provide(
                message.caller_id,
                message.caller_tools,
                self.writer.record,
                attached=self.state.attached,
                now=self.clock.time(),
            )
            self._apply(effects)
        if message.idempotency is not None:
            self.writer.put(PutIdempotency(message.idempotency))
        self.writer.then(
            lambda: answer.set(
                SubmittedTurn(turn=number, log_end=self.writer.log_end, warnings=warnings)
            )
        )
        self.active()
        self._begin_turn()

    @property
    def _held_up(self) -> bool:
        """Whether the agent has yet to see the tools that came with the next turn."""
        return self.link.tools.awaited_since is not None

    def _begin_turn(self) -> None:
        """Begin the next turn, if there is one and nothing is in its way."""
        if self.stopping:
            return  # turns that wait are not run any more, as the end of the session records
        self._apply(self.state.begin(self.writer.record.status, held_up=self._held_up))

    def _apply(self, effects: Effects) -> None:
        self.applier.apply(effects)

    def _follow_up(self, effect: FollowUp) -> None:
        """Have a part of the session decide again, on its state by now."""
        match effect:
            case WatchTurn():
                self._apply(self.watchdog.turn_started(effect.turn, self._watch_input))
            case EndTurnWatch():
                self._apply(self.permissions.turn_ended(self.clock.time()))
                self.watchdog.turn_ended()
            case BeginTurn():
                self._begin_turn()
            case InterruptTurn():
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
            case CallStored():
                failpoint("session.request_settled")
                self._apply(self.link.calls.stored(effect))
            case ProgressStored():
                self._apply(self.link.calls.progress_stored(effect))
            case SendTools():
                self._apply(self.link.tools.send(self.writer.record))
            case NotifyRootCaller():
                self._apply((self.link.root_caller(self.writer.record),))

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
            served=self.link.serves,
            waits=self.link.busy or self.permissions.waiting,
        )

    @handles(AgentStartProgress)
    def _agent_stage(self, message: AgentStartProgress) -> None:
        self._stage_changed("agent", message)

    @handles(StageChanged)
    def _container_stage(self, message: StageChanged) -> None:
        self._stage_changed(message.stage, message)

    def _stage_changed(self, stage: str, message: AgentStartProgress | StageChanged) -> None:
        if message.state == "done":
            self.process.starting_since = self.clock.time()
        self._apply((stage_event(stage, message),))

    @handles(AgentStarting)
    def _agent_starting(self, message: AgentStarting) -> None:
        answer = self.defer()
        self.state.process_replaced()
        self.writer.change(
            process_id=message.process_id,
            container_id=message.container_id,
            process_frames=FRAMES,
        )
        runtime = self.context.agents.get(self.writer.record.agent)
        contacts = runtime is not None and runtime.starts_mcp
        self._apply(self.watchdog.starting(contacts=contacts))
        self.link.tools.agent_starting()
        self.writer.then(lambda: answer.set(None))

    @handles(AgentAttached)
    def _agent_attached(self, message: AgentAttached) -> None:
        was_attached = self.state.attached
        self._apply(self.state.agent_attached(message.stdin_accepted, started=message.started))
        if not was_attached:
            self._apply(self.permissions.attached())
        self._apply(self.watchdog.attached(self._watch_input, again=was_attached))
        self.active()
        self._begin_turn()

    @handles(OutputRefused)
    def _output_refused(self, message: OutputRefused) -> None:
        raise RuntimeError(f"what the agent said could not be taken in: {message.error}")

    @handles(AgentWrites)
    def _agent_writes(self, message: AgentWrites) -> None:
        if not self.state.finished:
            seq = self.state.next_seq()
            self.process.write(StdinFrame(seq=seq, kind="raw", raw=message.data))

    @handles(AgentOutput)
    def _agent_spoke(self, message: AgentOutput) -> None:
        if self.state.finished or message.process_id != self.writer.record.process_id:
            return
        failpoint("session.agent_spoke")
        answer = self.defer()
        offset = 0
        try:
            for item in message.items:
                if self.state.take_in(item.offset, item.ordinal):
                    self._take_in(item, f"{message.process_id}:{item.offset}:{item.ordinal}")
                offset = item.ack
        except Exception:
            self.log.broken = True  # the asker reports it again, see OutputRefused
            raise
        self.active()
        self._apply(self.watchdog.stepped(message.steps, self._watch_input))
        self.writer.then(lambda: self.process.acknowledge(offset))
        self.log.answer_with_room(answer)

    def _take_in(self, item: OutputEvent, source: str) -> None:
        if item.type != "system":
            self._apply(self.watchdog.heard(item.type, item.data, self._watch_input))
        given_up = self.watchdog.given_up
        self._apply(effects_of(item, source, self.state, self.writer.record, given_up))

    def _permission_asked(self, effect: AskPermission) -> None:
        self._apply(
            self.permissions.asked(
                effect.data,
                effect.source,
                turn=self.state.turn,
                place=self.link.place(self.writer.record),
                remembered=self.writer.record.remembered,
                event_index=self.writer.next_index,
                now=self.clock.time(),
            )
        )

    def _complete(self, outcome: str, text: str | None, source: str | None) -> None:
        """End the running turn."""
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
        if not self.state.finished:
            now = self.clock.time()
            self._apply(self.permissions.overdue(message, self.state.turn, now))

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
            self._apply(self.link.request_down(message, self.clock.time()))
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
        self.requested_end.begin(self.writer.record, self.clock.time())
        self._apply(self.link.cancel_all("the session was ended", self.clock.time()))
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

    @handles(IdleCheck)
    def _idle_check(self, _: IdleCheck) -> None:
        busy = self.writer.record.status == "running" or not self.state.quiet
        left = self.idle.left(self.clock.monotonic(), busy=busy)
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

    @handles(InterruptSession)
    def _interrupt(self, _: InterruptSession) -> str:
        self._apply(self.state.interrupt(held_up=self._held_up))
        return self.writer.record.status

    @handles(IsBlocked)
    def _is_blocked(self, _: IsBlocked) -> bool:
        return self.link.children.blocked

    @handles(RootCaller)
    def _root_caller_changed(self, message: RootCaller) -> None:
        self.link.root_caller_changed(message)

    @handles(LimitNotice)
    def _limit_noticed(self, message: LimitNotice) -> None:
        """Handle a limit of its tree or project that is near or reached."""
        if self.stopping:
            return
        effects, end = limit_noticed(message)
        self._apply(effects)
        if message.action == "interrupt" and self.state.turn is not None:
            self._apply(self.watchdog.interrupt(self.state.turn))
        elif end is not None:
            self.finish(end)

    def finish(self, end: EndOfSession) -> None:
        """Finish: settle open requests, write the end, then release all resources."""
        self.state.finished = True
        self._apply(self.link.cancel_all(end.reason, self.clock.time()))
        record = self.writer.record
        self.resources.process = record.process_id
        now = self.clock.time()
        self._apply(self.state.finish(end, record.status, now, final=self.requested_end.final))
        self.writer.then(lambda: self.resources.release(self.log))

    # ------------------------------------------------------------------ the link, the caller

    @handles(ClientPaired)
    def _client_paired(self, message: ClientPaired) -> None:
        self._apply(self.watchdog.contacted(self.writer.record))
        if not message.bare:
            self.link.tools.client_seen()

    @handles(ListingOverdue)
    def _listing_overdue(self, message: ListingOverdue) -> None:
        if not self.state.finished:
            self._apply(self.link.tools.overdue(message))

    @handles(ToolsNotListed)
    def _tools_not_listed(self, _: ToolsNotListed) -> None:
        if not self.state.finished:
            self._apply(self.link.tools.never_listed(self.writer.record))

    @handles(LinkReady)
    def _link_ready(self, message: LinkReady) -> None:
        record = self.writer.record
        self._apply(self.link.tools.connected(message.link, record, bare=message.bare))

    @handles(LinkRequest, at_once=True)
    def _link_request(self, message: LinkRequest) -> None:
        self.active()
        self.watchdog.silence.broken(self.clock.monotonic())
        self._apply(self.watchdog.contacted(self.writer.record))
        if not message.bare:
            self.link.tools.client_seen()
        given = RequestInput(
            record=self.writer.record, now=self.clock.time(), stopping=self.stopping
        )
        self._apply(self.link.request(message, given))

    @handles(AnswerCallerTool)
    def _answered(self, message: AnswerCallerTool) -> bool | None:
        if not self.link.calls.accepts(message):
            return False
        self._apply(self.link.calls.answered(message, self.defer()))
        return None

    @handles(ReportCallProgress)
    def _call_progressed(self, message: ReportCallProgress) -> bool:
        if not self.link.calls.accepts(message):
            return False
        self._apply(self.link.calls.progressed(message, self.clock.time()))
        return True

    @handles(ProgressDue)
    def _progress_due(self, message: ProgressDue) -> None:
        self._apply(self.link.calls.progress_due(message, self.clock.time()))

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

    @handles(RequestSettled)
    def _settled(self, message: RequestSettled) -> None:
        self.active()
        self._apply(self.link.settled(message, self.clock.time()))

    @handles(CallReserved)
    def _call_reserved(self, message: CallReserved) -> None:
        self._apply(self.link.reserved(message, self.writer.next_index))

    @handles(MapRoom)
    def _map_room_known(self, message: MapRoom) -> None:
        self._apply(self.link.map_room_known(message, self.clock.time()))

    @handles(ReportCalls)
    def _report_calls(self, _: ReportCalls) -> None:
        self._apply(self.link.calls.report())

    @handles(LinkAnswered)
    def _link_answered(self, message: LinkAnswered) -> None:
        self._apply(self.link.answered_later(message))

    @handles(ChildSpawned)
    def _child_spawned(self, message: ChildSpawned) -> None:
        self._apply(self.link.children.spawned(message, self.clock.time()))

    @handles(ChildTurnEnded)
    def _child_turn_ended(self, message: ChildTurnEnded) -> None:
        self.active()
        self._apply(self.link.children.turn_ended(message, self.clock.time()))
