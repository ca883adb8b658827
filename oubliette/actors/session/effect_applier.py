"""Application of a session's effects, in order.

What goes into the next transaction is handed to the session's `EventWriter`; what waits for its
commit is kept there, and applied when the transaction is in the store.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from oubliette.actors.agent_requests.caller_request import CallerRequestActor
from oubliette.actors.agent_requests.request_jobs import RequestJobs
from oubliette.actors.messages import EndSession
from oubliette.actors.open_calls import OPEN_CALLS, ReleaseCall
from oubliette.actors.session.effects import (
    AfterCommit,
    AnswerAsk,
    AppendEvent,
    AskMapSlots,
    ChangeRecord,
    CountUsage,
    EndAgentProcess,
    EndCallWatch,
    EndChild,
    EndRequest,
    GiveUpAgent,
    InterruptAgent,
    NotifyClient,
    NotifyParent,
    NotifyTree,
    PassFailpoint,
    ReadOutcome,
    ReleaseOpenCall,
    ReplyToClient,
    ReportOpenCalls,
    ReportProgress,
    ReserveOpenCall,
    SendDecision,
    SendPrompt,
    SendToSelf,
    ServeRequest,
    SpawnChild,
    StartTimer,
    Store,
    StoreTurn,
    TellAgent,
    WatchCall,
    WithdrawTurn,
    WriteFrame,
)
from oubliette.actors.session.messages import (
    LinkNotify,
    LinkProgress,
    LinkReply,
    LinkRequestOver,
    StdinFrame,
    StopRequest,
)
from oubliette.failpoints import failpoint
from oubliette.runtime.store.operations import PutTurn

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.agent_watchdog.silence import Silence
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.agent_handle import AgentHandle
    from oubliette.actors.session.effects import Effects
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.actors.session.state import SessionActorState
    from oubliette.kit import Actor, Ref


class EffectApplier:
    """Applies the effects of one session; same lifetime as its actor."""

    __slots__ = ("_actor", "_context", "_follow_up", "_jobs", "_process", "_silence", "_state",
                 "_writer")  # fmt: skip

    def __init__(
        self,
        actor: Actor,
        context: ActorContext,
        *,
        state: SessionActorState,
        writer: EventWriter,
        silence: Silence,
        container: Ref,
        process: AgentHandle,
        follow_up: Callable[[Any], object],
    ) -> None:
        """Apply effects by the means of an actor.

        Args:
            actor: Starts children, timers and jobs.
            context: Ports of the server.
            state: Numbers the frames for the agent.
            writer: Takes what goes into the log.
            silence: Is broken by what the agent is sent.
            container: Knows how much memory is left for agents.
            process: The agent's process.
            follow_up: Handles the effects by which a part of the session decides again.
        """
        self._actor = actor
        self._context = context
        self._state = state
        self._writer = writer
        self._silence = silence
        self._process = process
        self._follow_up = follow_up
        self._jobs = RequestJobs(actor, context, writer, container)

    def apply(self, effects: Effects) -> None:
        """Apply effects in order; those that depend on a commit come after it."""
        for effect in effects:
            apply = self._HOW.get(type(effect))
            if apply is None:
                self._follow_up(effect)
            else:
                apply(self, effect)

    # ------------------------------------------------------------------ the next transaction

    def _append(self, effect: AppendEvent) -> None:
        self._writer.append(
            effect.type,
            effect.data,
            source=effect.source,
            caller_id=effect.caller_id,
            principal=effect.principal,
        )

    def _change(self, effect: ChangeRecord) -> None:
        self._writer.change(**effect.fields)

    def _store_turn(self, effect: StoreTurn) -> None:
        turn = effect.turn
        if turn.state == "running" and turn.began_index is None:
            turn = self._state.running = self._writer.begun(turn)
        self._writer.put(PutTurn(turn))

    def _count(self, effect: CountUsage) -> None:
        self._writer.count(effect.used)

    def _store(self, effect: Store) -> None:
        self._writer.put(effect.operation)

    def _after_commit(self, effect: AfterCommit) -> None:
        self._writer.then(partial(self.apply, (effect.effect,)))

    # ------------------------------------------------------------------ the agent

    def _write_frame(self, effect: WriteFrame) -> None:
        self._process.write(effect.frame)

    def _send_prompt(self, effect: SendPrompt) -> None:
        turn = effect.turn
        native = self._writer.record.conversation == "native"
        failpoint("session.before_prompt")
        self._process.write(
            StdinFrame(
                seq=turn.stdin_seq or 0,
                kind="prompt",
                turn=turn.number,
                text=turn.prompt if native else turn.context + turn.prompt,
                unless_forked=turn.context if native else "",
            )
        )
        failpoint("session.after_prompt")

    def _send_decision(self, effect: SendDecision) -> None:
        request = effect.request
        self._silence.broken(self._actor.clock.monotonic())
        self._process.write(
            StdinFrame(
                seq=self._state.next_seq(),
                kind="permission",
                request_id=request.agent_request_id,
                decision=request.decision or "deny",
                text=request.reason,
            )
        )

    def _to_agent(self, effect: TellAgent) -> None:
        self._process.tell(effect.message)

    def _withdraw(self, effect: WithdrawTurn) -> None:
        self._process.withdraw(effect.turn, self._state.prompt_seq)

    def _interrupt_agent(self, effect: InterruptAgent) -> None:
        seq = self._state.next_seq()
        self._process.write(StdinFrame(seq=seq, kind="interrupt", turn=effect.turn))

    def _end_agent(self, _: EndAgentProcess) -> None:
        self._process.end()

    def _give_up_agent(self, effect: GiveUpAgent) -> None:
        self._process.give_up(effect, self._writer.record)

    # ------------------------------------------------------------------ the agent's client

    def _reply(self, effect: ReplyToClient) -> None:
        self._silence.broken(self._actor.clock.monotonic())
        rpc = effect.rpc
        ref = self._actor.system.lookup(rpc.link)
        if ref is not None and ref.is_alive():
            reply = LinkReply(
                generation=rpc.generation, id=rpc.id, result=effect.result, error=effect.error
            )
            ref.tell(reply)

    def _end_request(self, effect: EndRequest) -> None:
        ref = self._actor.system.lookup(effect.rpc.link)
        if ref is not None and ref.is_alive():
            ref.tell(LinkRequestOver())

    def _notify_client(self, effect: NotifyClient) -> None:
        ref = self._actor.system.lookup(effect.link)
        if ref is not None and ref.is_alive():
            ref.tell(
                LinkNotify(method="caller_tools_config", params=effect.params, legacy_type=True)
            )

    def _report_progress(self, effect: ReportProgress) -> None:
        rpc = effect.rpc
        ref = self._actor.system.lookup(rpc.link)
        if ref is not None and ref.is_alive():
            ref.tell(LinkProgress(generation=rpc.generation, id=rpc.id, message=effect.message))

    def _serve(self, effect: ServeRequest) -> None:
        self._jobs.serve(effect)

    def _read_outcome(self, effect: ReadOutcome) -> None:
        self._jobs.read_outcome(effect)

    # ------------------------------------------------------------------ calls of caller tools

    def _watch_call(self, effect: WatchCall) -> None:
        actor, request = self._actor, effect.request
        ref = actor.spawn(
            CallerRequestActor,
            self._context,
            actor.ref,
            request,
            adopted=effect.adopted,
            name=f"{actor.name}/req/{request.id}",
        )
        actor.watch(ref)

    def _end_call_watch(self, effect: EndCallWatch) -> None:
        actor = self._actor
        ref = actor.system.lookup(f"{actor.name}/req/{effect.request_id}")
        if ref is not None and ref.is_alive():
            actor.unwatch(ref)  # its Down would contain nothing new
            ref.tell(StopRequest())

    def _reserve_open_call(self, effect: ReserveOpenCall) -> None:
        self._jobs.reserve_call(effect)

    def _release_open_call(self, effect: ReleaseOpenCall) -> None:
        actor = self._actor
        released = ReleaseCall(session=actor.name, request_id=effect.request_id)
        actor.system.ref(OPEN_CALLS).tell(released)

    def _report_open_calls(self, effect: ReportOpenCalls) -> None:
        self._jobs.report_calls(effect)

    def _answer_ask(self, effect: AnswerAsk) -> None:
        effect.answer.set(effect.value)

    def _send_to_self(self, effect: SendToSelf) -> None:
        self._actor.ref.tell(effect.message)

    # ------------------------------------------------------------------ other sessions, the tree

    def _spawn_child(self, effect: SpawnChild) -> None:
        self._jobs.spawn_child(effect)

    def _ask_map_slots(self, effect: AskMapSlots) -> None:
        self._jobs.ask_map_slots(effect)

    def _end_child(self, effect: EndChild) -> None:
        child = self._context.session_registry.session(effect.session_id)
        if child is not None and child.is_alive():
            child.tell(EndSession(reason="its part of session_map is done", final=False))

    def _notify_parent(self, effect: NotifyParent) -> None:
        parent = self._context.session_registry.session(effect.session_id)
        if parent is not None:
            parent.tell(effect.message)

    def _notify_tree(self, effect: NotifyTree) -> None:
        tree = self._actor.system.lookup(f"trees/{self._writer.record.exploration_id}")
        if tree is not None and tree.is_alive():
            tree.tell(effect.message)

    # ------------------------------------------------------------------ itself

    def _start_timer(self, effect: StartTimer) -> None:
        self._actor.after(effect.seconds, effect.message)

    def _pass_failpoint(self, effect: PassFailpoint) -> None:
        failpoint(effect.name)

    _HOW: ClassVar[dict[type, Callable[[EffectApplier, Any], None]]] = {
        AppendEvent: _append,
        ChangeRecord: _change,
        CountUsage: _count,
        StoreTurn: _store_turn,
        Store: _store,
        AfterCommit: _after_commit,
        WriteFrame: _write_frame,
        SendPrompt: _send_prompt,
        SendDecision: _send_decision,
        TellAgent: _to_agent,
        WithdrawTurn: _withdraw,
        InterruptAgent: _interrupt_agent,
        EndAgentProcess: _end_agent,
        GiveUpAgent: _give_up_agent,
        ReplyToClient: _reply,
        EndRequest: _end_request,
        NotifyClient: _notify_client,
        ReportProgress: _report_progress,
        ServeRequest: _serve,
        ReadOutcome: _read_outcome,
        WatchCall: _watch_call,
        EndCallWatch: _end_call_watch,
        ReserveOpenCall: _reserve_open_call,
        ReleaseOpenCall: _release_open_call,
        ReportOpenCalls: _report_open_calls,
        AskMapSlots: _ask_map_slots,
        AnswerAsk: _answer_ask,
        SendToSelf: _send_to_self,
        SpawnChild: _spawn_child,
        EndChild: _end_child,
        NotifyParent: _notify_parent,
        NotifyTree: _notify_tree,
        StartTimer: _start_timer,
        PassFailpoint: _pass_failpoint,
    }
