"""Handle of a session on the actor of its agent's process: its start, its input, its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.agent_process.actor import AgentProcessActor
from oubliette.actors.agent_process.standard_error import last_words
from oubliette.actors.agent_watchdog.messages import PromptWithdrawn
from oubliette.actors.container.messages import GetContainerInfo
from oubliette.actors.session.messages import AckOutput, AgentGone, EndAgent, WithdrawPrompt
from oubliette.kit import ActorError

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import ContainerRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.effects import GiveUpAgent
    from oubliette.actors.session.messages import StdinFrame
    from oubliette.actors.session.state import SessionActorState, SessionMemory
    from oubliette.kit import Actor, Down, Message, Ref
    from oubliette.records import Session


INFO_SECONDS: Final = 2.0  # for the container's actor to report what it is


class AgentHandle:
    """The agent's process of one session; same lifetime as its actor."""

    __slots__ = ("_context", "_down", "_memory", "_ref", "_session", "_unit", "starting_since")

    def __init__(
        self,
        session: Actor,
        context: ActorContext,
        unit: ContainerRefs,
        memory: SessionMemory,
    ) -> None:
        self._session = session
        self._context = context
        self._unit = unit
        self._memory = memory
        self._ref: Ref | None = None
        self._down: asyncio.Event | None = None
        """Set when the agent's actor has ended; None unless it is waited for."""
        self.starting_since = 0.0
        """Wall second at which the latest stage of the agent's start began."""

    @property
    def ref(self) -> Ref | None:
        """The actor of the agent's process, if there is one."""
        return self._ref if self._ref is not None and self._ref.is_alive() else None

    @property
    def wanted_before(self) -> bool:
        """Whether this actor has started the agent, or attached to it, before."""
        return self._ref is not None

    def start(self, record: Session, state: SessionActorState) -> None:
        """Start the agent's process, or attach to it again, reading from where the log ends."""
        session = self._session
        paced, self._memory.paced = self._memory.paced, False
        state.agent_detached()
        self.starting_since = session.clock.time()
        self._ref = session.spawn(
            AgentProcessActor,
            self._context,
            self._unit,
            session.ref,
            record,
            max(state.seen[0], 0),
            turns_done=state.turns_done,
            has_turn=not state.quiet,
            paced=paced,
            api_key=self._memory.api_key,
            name=f"{session.name}/agent",
        )
        session.watch(self._ref)

    def tell(self, message: Message) -> None:
        """Send a message to the actor of the agent's process, if there is one."""
        if (ref := self.ref) is not None:
            ref.tell(message)

    def write(self, frame: StdinFrame) -> None:
        """Send a frame to the agent's process, which drops frames that it already has."""
        self.tell(frame)

    def acknowledge(self, offset: int) -> None:
        """Report the offset of the output up to which all of it is in the log."""
        self.tell(AckOutput(out=offset))

    def withdraw(self, turn: int, seq: int) -> None:
        """Take back the frame `seq`, the prompt of a turn; `PromptWithdrawn` has the outcome."""
        if (ref := self.ref) is not None:
            self._session.pipe_to_self(
                ref.ask(WithdrawPrompt(seq=seq)),
                lambda withdrawn: PromptWithdrawn(turn=turn, withdrawn=withdrawn),
                lambda _: PromptWithdrawn(turn=turn, withdrawn=False),
            )

    def give_up(self, why: GiveUpAgent, record: Session) -> None:
        """Fail for an unusable agent; the end of its standard error may contain the reason."""
        gone = AgentGone(reason=why.reason, start_failed=why.start_failed)

        async def words() -> str:
            try:
                info = await self._unit.container.ask(GetContainerInfo(), INFO_SECONDS)
            except ActorError:
                info = None
            return await last_words(self._context, record, info, api_key=self._memory.api_key)

        self._session.pipe_to_self(
            words(),
            lambda words: msgspec.structs.replace(gone, reason=why.reason + words),
            lambda _: gone,
        )

    def end(self) -> bool:
        """Ask the agent to end; return whether there is one."""
        if (ref := self.ref) is None:
            return False
        ref.tell(EndAgent())
        return True

    async def ended(self) -> None:
        """Ask the agent to end, and wait until it has."""
        if self.ref is not None:
            down = self._down = asyncio.Event()
            self.end()
            await down.wait()

    def went_down(self, message: Down) -> bool:
        if self._ref is None or message.name != self._ref.name:
            return False
        if self._down is not None:
            self._down.set()
        return True
