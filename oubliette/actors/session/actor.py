"""One agent session: its life, its turns, its log, what its agent asks for.

The actor holds no truth of its own: whatever it must not forget is in the store before anybody is
told. When it fails, a new one reads the log and takes the agent over where the log ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.actors.agent_requests.caller_tools import KEEP_SETTLED, new_pairing_secret
from oubliette.actors.agent_requests.router import AgentRequestRouter
from oubliette.actors.messages import AnswerCallerTool, AnswerPermission, InterruptSession
from oubliette.actors.session import lifecycle, recovery
from oubliette.actors.session.agent_watchdog import DEADLINES, AgentWatchdog
from oubliette.actors.session.messages import (
    AgentAttached,
    AgentBusy,
    AgentCost,
    AgentGone,
    AgentOutput,
    ChildSpawned,
    ChildTurnEnded,
    ClientPaired,
    EndAgent,
    IsBlocked,
    LimitNotice,
    LinkAnswered,
    LinkReady,
    LinkRequest,
    OutputEvent,
    RequestSettled,
    RootCaller,
    StdinFrame,
    SubmittedTurn,
    SubmitTurn,
)
from oubliette.actors.session.permissions import PermissionOverdue, Permissions
from oubliette.actors.session.shutdown import IdleCheck, RestingSession
from oubliette.actors.session.tool_listing import ListingOverdue
from oubliette.actors.session.wait_reasons import waits_of
from oubliette.actors.session.waits import GetWaits, SessionWaits
from oubliette.actors.session.write_batch import EventWriter
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, LimitExceeded
from oubliette.failpoints import failpoint
from oubliette.kit import Down, Message, handles
from oubliette.records import Turn
from oubliette.runtime.store.operations import PutIdempotency, PutTurn

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.memory import SessionMemory


class SessionActor(RestingSession):
    """Runs one session until it rests; named `…/sessions/<id>`, found through the Directory."""

    mailbox_size = 10_000

    def __init__(
        self,
        context: ActorContext,
        guest: GuestConnection,
        session_id: str,
        memory: SessionMemory,
    ) -> None:
        super().__init__(context, guest, session_id, memory)
        self.watchdog = AgentWatchdog(self)
        self._queue: list[Turn] = []  # short, and an empty deque takes ten times the room
        self._turn: Turn | None = None
        self._turn_number = 0
        self._turn_error: str | None = None
        """The last error that the agent has told in the running turn."""
        self.permissions = Permissions(self, self.watchdog.silence)

    # ------------------------------------------------------------------ life

    async def on_start(self) -> None:
        """Read the log, take over what is open, bring the agent up or attach to it again."""
        # What an earlier actor was about to store is stored, or never will be, before we read.
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
        self.writer = EventWriter(
            record,
            stored.tail,
            stored.log_end,
            ring_size=kept,
            now=self.clock.time,
            wake=self._wake_flush,
        )
        self._last_activity = self.clock.monotonic()
        self._turn = stored.running
        self._queue.extend(turn for turn in stored.turns if turn.state == "queued")
        self._turn_number = record.turn_count
        self._show()
        self._seen = stored.seen
        self.context.session_registry.enter(self.session_id, self.system.ref(self.name))
        self.link = AgentRequestRouter(self, stored, self.watchdog.silence)
        self.link.take_over(stored)
        self.permissions.take_over(stored)
        self.watchdog.take_over(stored)
        if self._crashed_too_often():
            self.finish("agent_lost", "failed", "its actor failed repeatedly; see the server log")
            return
        if record.pairing_secret is None:  # recorded by a server before this one
            self.writer.change(pairing_secret=new_pairing_secret())
        self._open_link()
        if not self.take_over_end():
            self._run_agent()
        self.after(self.context.config.sessions.idle_timeout_seconds, IdleCheck())

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        """Leave the directory; whoever waits here is told."""
        if reason != "failed":
            self.context.session_registry.leave(self.session_id, self.name)
        if reason == "failed":
            self._note_crash()
        await super().on_exit(reason, error)

    @property
    def quiet(self) -> bool:
        """Whether no turn runs and none waits."""
        return self._turn is None and not self._queue

    @property
    def turn(self) -> int | None:
        """The number of the turn that runs."""
        return None if self._turn is None else self._turn.number

    @property
    def prompt_seq(self) -> int:
        """The number of the frame that carries the running turn's prompt; 0 without one."""
        return (self._turn.stdin_seq or 0) if self._turn is not None else 0

    @property
    def waits(self) -> bool:
        """Whether the agent waits for somebody: a caller's tool, a child, a decision."""
        return self.link.busy or self.permissions.waiting

    @property
    def _turns_done(self) -> int:
        """The number of the last turn that is over."""
        following = self._turn or (self._queue[0] if self._queue else None)
        return following.number - 1 if following is not None else self._turn_number

    @handles(GetWaits)
    def _waits(self, _: GetWaits) -> SessionWaits:
        return waits_of(self)

    # ------------------------------------------------------------------ turns

    @handles(SubmitTurn)
    def _submit(self, message: SubmitTurn) -> None:
        limit = self.context.config.sessions.max_queued_messages
        if len(self._queue) >= limit:
            raise LimitExceeded(
                f"sessions.max_queued_messages: {limit} messages wait for this session already",
                hint="wait for its turns to end, or raise the limit in the configuration",
            )
        if self.stopping:
            raise Conflict("the session is ending", hint="start another one")
        answer = self.defer()
        number = self._turn_number + 1
        self._turn_number = number
        turn = Turn(
            session_id=self.session_id,
            number=number,
            prompt=message.prompt,
            state="queued",
            created_at=self.clock.time(),
            call_id=message.call_id,
        )
        self._queue.append(turn)
        self._tell_tree(AgentBusy(session_id=self.session_id, works=True))
        warnings: tuple[str, ...] = ()
        if message.caller_id is not None or message.caller_tools is not None:
            warnings = self.link.lend(message.caller_id, message.caller_tools)
        self.writer.put(PutTurn(turn))
        self.writer.change(turn_count=number, last_prompt=message.prompt)
        if message.idempotency is not None:
            self.writer.put(PutIdempotency(message.idempotency))
        self.writer.then(
            lambda: answer.set(
                SubmittedTurn(turn=number, log_end=self.writer.log_end, warnings=warnings)
            )
        )
        self.active()
        self.begin_turn()

    @property
    def _held_up(self) -> bool:
        """Whether the agent is not there yet, or has yet to see the tools that it was lent."""
        return not self._attached or self.link.tools.awaited_since is not None

    def begin_turn(self) -> None:
        """Begin the next turn, if there is one and nothing is in its way."""
        if self._turn is not None or not self._queue or self._held_up or self._finished:
            return
        self._stdin_seq += 1
        turn = msgspec.structs.replace(
            self._queue.pop(0), state="running", stdin_seq=self._stdin_seq
        )
        self._turn = turn
        self.writer.put(PutTurn(turn))
        self._status("turn_started", turn=turn.number)
        self.watchdog.turn_started(turn.number)
        self.writer.then(lambda: self._hand_over(turn))

    def _hand_over(self, turn: Turn) -> None:
        failpoint("session.before_prompt")
        self.write(
            StdinFrame(seq=turn.stdin_seq or 0, kind="prompt", turn=turn.number, text=turn.prompt)
        )
        failpoint("session.after_prompt")

    def _status(self, step: lifecycle.Step, reason: str | None = None, **data: Any) -> None:
        status = lifecycle.after(self.writer.record.status, step)
        self.writer.change(status=status, status_reason=reason)
        self.writer.append("status", {"status": status, "reason": reason, **data})

    def _turn_ended(self, outcome: str, result: str | None) -> None:
        turn, self._turn = self._turn, None
        self._turn_error = None
        self.permissions.turn_ended()
        self.watchdog.turn_ended()
        if turn is None:
            return
        if not self._queue:
            self._tell_tree(AgentBusy(session_id=self.session_id, works=False))
        done = msgspec.structs.replace(turn, state="done", outcome=outcome, result=result)
        self.writer.put(PutTurn(done))
        self._tell_parent(done)

    def _tell_tree(self, message: AgentBusy | AgentCost) -> None:
        tree = self.system.lookup(f"explorations/{self.writer.record.exploration_id}")
        if tree is not None and tree.is_alive():
            tree.tell(message)

    def _tell_parent(self, turn: Turn) -> None:
        if turn.call_id is None:
            return
        parent_id, _, call_id = turn.call_id.partition("/")

        def tell() -> None:
            parent = self.context.session_registry.session(parent_id)
            if parent is not None:
                parent.tell(
                    ChildTurnEnded(
                        session_id=self.session_id,
                        call_id=call_id,
                        outcome=turn.outcome or "failed",
                        result=turn.result,
                    )
                )

        self.writer.then(tell)

    # ------------------------------------------------------------------ the agent

    @handles(AgentAttached)
    def _agent_attached(self, message: AgentAttached) -> None:
        was_attached, self._attached = self._attached, True
        turn = self._turn
        if turn is not None and message.started:
            self._turn_ended("failed", "the agent was started anew")
            turn = None
        self._stdin_seq = max(self._stdin_seq, message.stdin_accepted)
        if turn is not None and self.prompt_seq > message.stdin_accepted:
            for seq in range(message.stdin_accepted + 1, self.prompt_seq):
                self.write(StdinFrame(seq=seq, kind="raw"))  # gone with whoever held it
            self._hand_over(turn)
        if not was_attached:
            self.permissions.attached()
        self.watchdog.attached(again=was_attached)
        self.active()
        self.begin_turn()

    @handles(AgentOutput)
    def _agent_spoke(self, message: AgentOutput) -> None:
        if self._finished or message.process_id != self.writer.record.process_id:
            return
        failpoint("session.agent_spoke")
        answer = self.defer()
        offset = 0
        try:
            for item in message.items:
                position = (item.offset, item.ordinal)
                if position > self._seen:
                    self._seen = position
                    self._take_in(item, f"{message.process_id}:{item.offset}:{item.ordinal}")
                offset = item.ack
        except Exception:
            self._broken = True  # who asked tells us so again, see OutputRefused
            raise
        self.active()
        self.watchdog.stepped(message.steps)
        self.writer.then(lambda: self._ack(offset))
        if self.writer.full:
            self._held.append(answer)
        else:
            answer.set(None)

    def _take_in(self, item: OutputEvent, source: str) -> None:
        data = item.data
        if item.type != "system":
            self.watchdog.heard(item.type, data)
        match item.type:
            case "completion":
                outcome = str(data.get("status", "completed"))
                final = data.get("final_text")
                text = final if isinstance(final, str) else None
                if outcome == "interrupted" and (reason := self.watchdog.given_up) is not None:
                    outcome, text = "failed", reason
                self._complete(outcome, text, source)
            case "usage":
                self._usage(data)
                self.writer.append("system", {"kind": "usage", **data}, source=source)
            case "ready":
                named = data.get("agent_session_id")
                if isinstance(named, str):
                    self.writer.change(agent_session_id=named)
                self.writer.append("system", {"kind": "ready", **data}, source=source)
            case "turn_started":
                self.writer.append("system", {"kind": item.type, **data}, source=source)
            case "permission_request":
                self.permissions.asked(data, source, self.turn)
            case "message":
                self.writer.append("message", {**data, "role": "assistant"}, source=source)
            case "error":
                self._turn_error = str(data.get("message") or "") or None
                self.writer.append("error", data, source=source)
            case "system":
                # What readers are told has a `type` of its own: that of the event.
                kind = data.get("kind", data.get("type"))
                told = data if kind is None else {**data, "kind": kind}
                self.writer.append("system", told, source=source)
                self.watchdog.heard("system", data)
            case _:
                self.writer.append(item.type, data, source=source)

    def _complete(self, outcome: str, text: str | None, source: str | None) -> None:
        """The running turn is over."""
        # Who waits for a turn that failed wants to know why.
        self._turn_ended(outcome, text or (self._turn_error if outcome == "failed" else text))
        told = {"final_text": text or "", "status": outcome}
        self.writer.append("completion", told, source=source)
        if self.writer.record.status == "running":
            self.writer.change(final_response=text)
            self._status("turn_ended")
        self.begin_turn()

    def end_unheard_turn(self) -> None:
        """The running turn was interrupted before its agent heard of it."""
        reason = self.watchdog.given_up
        self._complete("failed" if reason else "interrupted", reason or "", None)

    def _usage(self, data: dict[str, Any]) -> None:
        record = self.writer.record
        self.writer.change(
            cost_usd=record.cost_usd + float(data.get("cost_usd") or 0.0),
            input_tokens=record.input_tokens
            + int(data.get("input_tokens") or data.get("tokens") or 0),
            output_tokens=record.output_tokens + int(data.get("output_tokens") or 0),
        )
        self._tell_tree(AgentCost(session_id=self.session_id, cost_usd=self.writer.record.cost_usd))

    @handles(*DEADLINES)
    def _patience_over(self, message: Message) -> None:
        if not self._finished:
            self.watchdog.take(message)

    @handles(PermissionOverdue)
    def _permission_overdue(self, message: PermissionOverdue) -> None:
        if not self._finished:
            self.permissions.overdue(message)

    @handles(AgentGone)
    def agent_gone(self, message: AgentGone) -> None:
        """The agent is no more, or of no use: the session fails."""
        self._attached = False
        if self._finished:
            return
        if self._end_reason is not None:
            self.finish("ended", "completed", self._end_reason)
            return
        step: lifecycle.Step = "start_failed" if message.start_failed else "agent_lost"
        reason = self.watchdog.given_up or message.reason
        self.writer.append(
            "error",
            {
                "message": message.reason,
                "exit_code": message.exit_code,
                "signal": message.signal,
            },
        )
        self.finish(
            step if lifecycle.allowed(self.writer.record.status, step) else "agent_lost",
            "failed",
            reason,
        )

    @handles(Down)
    def _down(self, message: Down) -> None:
        if self._agent is None or message.name != self._agent.name:
            self.link.request_down(message)
            return
        if self._agent_down is not None:
            self._agent_down.set()
        if self._finished:
            return
        self._note_crash()
        if message.reason != "failed" or self._crashed_too_often():
            self.agent_gone(
                AgentGone(reason=message.error or "the actor of its agent process ended")
            )
            return
        self._run_agent()
        if self._end_reason is not None:
            self._agent.tell(EndAgent())

    # ------------------------------------------------------------------ its end

    @handles(InterruptSession)
    def _interrupt(self, _: InterruptSession) -> str:
        if self._turn is not None:
            self.watchdog.interrupt(self._turn.number)
        elif self._queue and self._held_up:
            turn = self._queue.pop(0)  # the agent does not know of it yet
            if not self._queue:
                self._tell_tree(AgentBusy(session_id=self.session_id, works=False))
            told = {"turn": turn.number, "final_text": "", "status": "interrupted"}
            self._drop(turn, "interrupted", "interrupted before it began")
            self.writer.append("completion", told)
        return self.writer.record.status

    def _drop(self, turn: Turn, outcome: str, result: str) -> None:
        """A turn that never ran."""
        turn = msgspec.structs.replace(turn, state="done", outcome=outcome, result=result)
        self.writer.put(PutTurn(turn))
        self._tell_parent(turn)

    @handles(IsBlocked)
    def _is_blocked(self, _: IsBlocked) -> bool:
        return self.link.children.blocked

    @handles(RootCaller)
    def _root_caller_changed(self, message: RootCaller) -> None:
        self.link.root_caller_changed(message)

    @handles(LimitNotice)
    def _limit_noticed(self, message: LimitNotice) -> None:
        """A limit of its tree or project: near, or reached."""
        if self.stopping:
            return
        self.writer.append(
            "system" if message.action == "warn" else "error",
            {"kind": "limit", "limit": message.limit, "message": message.message},
        )
        if message.action == "interrupt" and self._turn is not None:
            self.watchdog.interrupt(self._turn.number)
        elif message.action == "time_out":
            self.finish("time_ran_out", "timed_out", message.message)

    def finish(self, step: lifecycle.Step, outcome: str, reason: str) -> None:
        """Come to rest: settle what is open, write the end, then let go of everything."""
        self._finished = True
        self.link.cancel_all(reason)
        self._turn_ended("interrupted" if step == "ended" else "failed", reason)
        while self._queue:
            turn, why = self._queue.pop(0), f"not run: the session came to rest ({reason})"
            self._drop(turn, "failed", why)
            self.writer.append("error", {"message": why, "turn": turn.number, "kind": "not_run"})
        status = lifecycle.after(self.writer.record.status, step)
        self._process = self.writer.record.process_id
        self.writer.change(
            status=status,
            status_reason=reason,
            ended_at=self.clock.time(),
            ended_by=reason if step == "ended" and self._end_final else None,
            ending=None,
            process_id=None,
        )
        self.writer.append("status", {"status": outcome, "reason": reason})
        self.writer.then(self.rest)

    # ------------------------------------------------------------------ the link, the caller

    @handles(ClientPaired)
    def _client_paired(self, message: ClientPaired) -> None:
        self.watchdog.contacted()
        if not message.bare:
            self.link.tools.client_seen()

    @handles(ListingOverdue)
    def _listing_overdue(self, message: ListingOverdue) -> None:
        if not self._finished:
            self.link.tools.overdue(message)

    @handles(LinkReady)
    def _link_ready(self, message: LinkReady) -> None:
        self.link.ready(message)

    @handles(LinkRequest, at_once=True)
    def _link_request(self, message: LinkRequest) -> None:
        self.active()
        self.watchdog.silence.broken()
        self.watchdog.contacted()
        if not message.bare:
            self.link.tools.client_seen()
        self.link.request(message)

    @handles(AnswerCallerTool)
    def _answered(self, message: AnswerCallerTool) -> bool | None:
        return self.link.answered(message)

    @handles(AnswerPermission)
    def _permission_answered(self, message: AnswerPermission) -> bool | None:
        self.active()
        return self.permissions.answered(message)

    @handles(RequestSettled)
    def _settled(self, message: RequestSettled) -> None:
        self.active()
        self.link.settled(message)

    @handles(LinkAnswered)
    def _link_answered(self, message: LinkAnswered) -> None:
        self.link.reply_to(message)

    @handles(ChildSpawned)
    def _child_spawned(self, message: ChildSpawned) -> None:
        self.link.children.spawned(message)

    @handles(ChildTurnEnded)
    def _child_turn_ended(self, message: ChildTurnEnded) -> None:
        self.active()
        self.link.children.turn_ended(message)
