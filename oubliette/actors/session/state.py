"""The turns of one session, and its positions in the agent's input and output, without I/O.

Each input has a method, which changes the state and returns the effects in the order in which the
actor has to apply them. The actor keeps no copy of any of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.actors.session import lifecycle
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    ChangeRecord,
    CountUsage,
    Effects,
    EndTurnWatch,
    InterruptTurn,
    NotifyParent,
    NotifyTree,
    SendPrompt,
    StoreTurn,
    WatchTurn,
    WriteFrame,
)
from oubliette.actors.session.messages import AgentBusy, ChildTurnEnded, StdinFrame
from oubliette.records import Turn, Used

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.actors.session.session_end import EndOfSession
    from oubliette.records import SessionStatus, TurnOutcome

NOWHERE = (-1, -1)
"""The position before all output."""


@dataclass(slots=True)
class SessionActorState:
    """State of a `SessionActor`: its turns, and the streams of its agent."""

    session_id: str
    queue: list[Turn] = field(default_factory=list[Turn])
    """Turns that wait, in order; an empty deque would take ten times the memory."""
    running: Turn | None = None
    last_number: int = 0
    """Of the newest turn, from 1."""
    last_error: str | None = None
    """The last error that the agent has reported in the running turn."""
    stdin_seq: int = 0
    """Number of the newest frame for the agent."""
    seen: tuple[int, int] = NOWHERE
    """Position in the agent's output of the newest item that was taken in."""
    attached: bool = False
    """Whether the agent's process accepts frames, and we know how many it has."""
    finished: bool = False
    """Whether the end is being written to the log."""

    # ------------------------------------------------------------------ what there is

    @property
    def quiet(self) -> bool:
        return self.running is None and not self.queue

    @property
    def turn(self) -> int | None:
        return None if self.running is None else self.running.number

    @property
    def waiting(self) -> int | None:
        """The number of the turn that begins next; None while one runs, and if none waits."""
        return self.queue[0].number if self.queue and self.running is None else None

    @property
    def prompt_seq(self) -> int:
        """The number of the frame that carries the running turn's prompt; 0 without one."""
        return (self.running.stdin_seq or 0) if self.running is not None else 0

    @property
    def turns_done(self) -> int:
        """The number of the last turn that is over."""
        following = self.running or (self.queue[0] if self.queue else None)
        return following.number - 1 if following is not None else self.last_number

    def recover(self, turns: Iterable[Turn], count: int, seen: tuple[int, int]) -> None:
        """Restore the state of an earlier actor from the store.

        Args:
            turns: Those that run or wait, in order.
            count: How many turns the session has had, these included.
            seen: Position in the agent's output of the newest item that is in the log.
        """
        for turn in turns:
            if turn.state == "running":
                self.running = turn
            elif turn.state == "queued":
                self.queue.append(turn)
        self.last_number = count
        self.seen = seen

    # ------------------------------------------------------------------ turns

    def submit(self, prompt: str, call_id: str | None, now: float) -> Effects:
        """Queue a prompt as a turn of its own.

        Args:
            prompt: For the agent.
            call_id: The call of a parent's agent that waits for the turn, if any.
            now: Wall second.
        """
        self.last_number += 1
        turn = Turn(
            session_id=self.session_id,
            number=self.last_number,
            prompt=prompt,
            state="queued",
            created_at=now,
            call_id=call_id,
        )
        self.queue.append(turn)
        return (
            NotifyTree(AgentBusy(session_id=self.session_id, works=True)),
            StoreTurn(turn),
            ChangeRecord({"turn_count": turn.number, "last_prompt": prompt}),
        )

    def begin(self, status: SessionStatus, *, held_up: bool) -> Effects:
        """Begin the next turn, unless one runs, none waits, or the agent is not prepared for it.

        A session whose prompts were all withdrawn before its agent was ready becomes idle.

        Args:
            status: Of the session.
            held_up: Whether the agent has yet to list the tools that the turn came with.
        """
        if self.running is None and not self.queue and status == "created" and self.attached:
            return () if self.finished else _status(lifecycle.after(status, "ready"))
        if self.running is not None or not self.queue or self.finished:
            return ()
        if held_up or not self.attached:
            return ()
        self.stdin_seq += 1
        turn = self.queue.pop(0)
        state = lifecycle.turn_after(turn.state, "begun")
        turn = msgspec.structs.replace(turn, state=state, stdin_seq=self.stdin_seq)
        self.running = turn
        following = lifecycle.after(status, "turn_started")
        return (
            StoreTurn(turn),
            *_status(following, turn=turn.number, message=turn.prompt),
            WatchTurn(turn.number),
            AfterCommit(SendPrompt(turn)),
        )

    def rest(self, status: SessionStatus) -> Effects:
        """Wait for a message without an agent, which starts with it."""
        return _status(lifecycle.after(status, "ready")) if status == "created" else ()

    def complete(
        self, outcome: TurnOutcome, text: str | None, source: str | None, status: SessionStatus
    ) -> Effects:
        """End the running turn; a result that comes without one is logged all the same.

        Args:
            outcome: How it ended.
            text: The agent's answer, or the reason why there is none if it reported no error.
            source: Position of the outcome in the agent's output.
            status: Of the session.
        """
        # The result of a failed turn is the reason; its text may be the agent's last message.
        result = (self.last_error or text) if outcome == "failed" else text
        number = self.turn
        effects = (
            *self._end_turn(outcome, result),
            _completion(number, outcome, result or "", source),
        )
        if status != "running":
            return effects
        following = lifecycle.after(status, "turn_ended")
        return *effects, ChangeRecord({"final_response": text}), *_status(following)

    def interrupt(self, *, held_up: bool) -> Effects:
        """Interrupt the turn that runs; without one, drop the next, if the agent lacks it still."""
        if self.running is not None:
            return (InterruptTurn(self.running.number),)
        if not self.queue or not (held_up or not self.attached):
            return ()
        turn = self.queue.pop(0)
        return (
            *self._idle(),
            *_done(turn, "interrupted", "interrupted before it began"),
            _completion(turn.number, "interrupted", ""),
        )

    def finish(
        self, end: EndOfSession, status: SessionStatus, now: float, *, final: bool
    ) -> Effects:
        """End the turn that runs, drop those that wait, and change the record to the end.

        Args:
            end: How the session ends, and why.
            status: Of the session so far.
            now: Wall second.
            final: Whether no message may resume a session that was ended by request.
        """
        self.finished = True
        ended, reason = end.step == "ended", end.reason
        effects = list(self._cut_off("interrupted" if ended else "failed", reason))
        why = f"not run: the session ended ({reason})"
        for turn in self.queue:
            shown = {"message": why, "turn": turn.number, "kind": "not_run"}
            effects += [*_done(turn, "failed", why), AppendEvent("error", shown)]
        self.queue.clear()
        return (
            *effects,
            ChangeRecord(
                {
                    "status": lifecycle.after(status, end.step),
                    "status_reason": reason,
                    "ended_at": now,
                    "ended_by": reason if ended and final else None,
                    "ending": None,
                    "process_id": None,
                }
            ),
            AppendEvent("status", {"status": end.outcome, "reason": reason}),
        )

    def _end_turn(self, outcome: TurnOutcome, result: str | None) -> Effects:
        turn, self.running = self.running, None
        self.last_error = None
        if turn is None:
            return (EndTurnWatch(),)
        return (EndTurnWatch(), *self._idle(), *_done(turn, outcome, result))

    def _cut_off(self, outcome: TurnOutcome, reason: str) -> Effects:
        """End the turn that runs, if any, without an outcome of the agent's own."""
        number = self.turn
        effects = self._end_turn(outcome, reason)
        return effects if number is None else (*effects, _completion(number, outcome, reason))

    def _idle(self) -> Effects:
        """Notify the tree, if no turn waits."""
        if self.queue:
            return ()
        return (NotifyTree(AgentBusy(session_id=self.session_id, works=False)),)

    # ------------------------------------------------------------------ the agent's streams

    def agent_attached(self, accepted: int, *, started: bool) -> Effects:
        """Write what the agent lacks, now that its streams are open.

        A frame is written once: the process drops a number that it has, so the prompt of a turn
        goes out under the number that it was stored with.

        Args:
            accepted: Number of the last frame that the agent's process has.
            started: Whether it is a new process, which knows nothing of the running turn.
        """
        self.attached = True
        turn = self.running
        effects: Effects = ()
        if turn is not None and started:
            effects = self._cut_off("failed", "the agent was started anew")
        self.stdin_seq = max(self.stdin_seq, accepted)
        if self.running is None or self.prompt_seq <= accepted:
            return effects
        # Frames before the prompt are gone with the process or the server that had them.
        lost = (StdinFrame(seq=seq, kind="raw") for seq in range(accepted + 1, self.prompt_seq))
        return *map(WriteFrame, lost), SendPrompt(self.running)

    def agent_detached(self) -> None:
        """Note that nothing is written to the agent until it is attached again.

        Frames that were not accepted are lost, except for the prompt, which is written again under
        its old number.
        """
        self.attached = False
        self.stdin_seq = self.prompt_seq

    def process_replaced(self) -> None:
        """Note that another process of the agent is about to start, with new streams."""
        self.seen = NOWHERE
        self.stdin_seq = 0

    def next_seq(self) -> int:
        """The number of one more frame for the agent, which must be attached."""
        self.stdin_seq += 1
        return self.stdin_seq

    def take_in(self, offset: int, ordinal: int) -> bool:
        """Move to this position in the agent's output; False if it was taken in before."""
        position = (offset, ordinal)
        if position <= self.seen:
            return False
        self.seen = position
        return True


def _status(following: SessionStatus, **data: object) -> Effects:
    return (
        ChangeRecord({"status": following, "status_reason": None}),
        AppendEvent("status", {"status": following, "reason": None, **data}),
    )


def _completion(
    turn: int | None, outcome: TurnOutcome, text: str, source: str | None = None
) -> AppendEvent:
    shown: dict[str, Any] = {"final_text": text, "status": outcome}
    return AppendEvent("completion", shown if turn is None else {**shown, "turn": turn}, source)


def _done(turn: Turn, outcome: TurnOutcome, result: str | None) -> Effects:
    """Store the end of a turn, then answer the call that waits for it."""
    state = lifecycle.turn_after(turn.state, outcome)
    done = msgspec.structs.replace(turn, state=state, outcome=outcome, result=result)
    stored: Effects = (StoreTurn(done),)
    if turn.state == "running":
        stored = (CountUsage(Used(turns=1)), *stored)
    if done.call_id is None:
        return stored
    parent_id, _, call_id = done.call_id.partition("/")
    ended = ChildTurnEnded(
        session_id=done.session_id, call_id=call_id, outcome=outcome, result=result
    )
    return *stored, AfterCommit(NotifyParent(parent_id, ended))


CRASH_WINDOW: Final = 60.0  # seconds; more than CRASHES failures in it end the session
CRASHES: Final = 3


@dataclass(slots=True)
class SessionMemory:
    """State that a SessionActor keeps over its own restarts, and that no other actor uses.

    It is part of the actor's child spec, so it is lost with the server and with the supervisor.
    """

    api_key: str | None = None
    """Key for the environment of its agent; never stored."""
    paced: bool = False
    """Whether a server that has started brings it back, among others: its agent starts in turn."""
    crashes: list[float] = field(default_factory=list[float])
    """Monotonic seconds of the actor's latest failures."""

    def note_crash(self, now: float) -> None:
        self.crashes.append(now)

    def crashed_too_often(self, now: float) -> bool:
        """Whether the actor has failed more than `CRASHES` times in `CRASH_WINDOW`."""
        self.crashes[:] = [at for at in self.crashes if now - at < CRASH_WINDOW]
        return len(self.crashes) > CRASHES
