"""Protocols of the actor that owns a session's parts, as these parts use it.

`SessionActor` implements all of them. A part names the smallest one that it needs, so a test can
stand in for the actor, and no part imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.actors.container.guest_connection import UnitRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.actors.session.messages import StdinFrame
    from oubliette.clock import Clock
    from oubliette.kit import ActorTimer, Deferred, Message, PipedTask, Ref, System

T = TypeVar("T")


class SessionPort(Protocol):
    """A session with its log, its clock and its mailbox."""

    session_id: str
    context: ActorContext
    unit: UnitRefs
    writer: EventWriter
    system: System
    clock: Clock

    @property
    def stopping(self) -> bool:
        """Whether it accepts nothing new."""
        ...

    def after(self, delay: float, message: Message) -> ActorTimer:
        """Send `message` to the session in `delay` seconds."""
        ...

    def pipe_to_self(
        self,
        awaitable: Awaitable[T],
        ok: Callable[[T], Message],
        err: Callable[[BaseException], Message],
    ) -> PipedTask:
        """Send the session a message with the outcome of `awaitable`."""
        ...

    def defer(self) -> Deferred:
        """Return a deferred answer to the request that the session handles now."""
        ...


class AgentPort(SessionPort, Protocol):
    """A session with its agent and the running turn."""

    @property
    def turn(self) -> int | None:
        """The number of the running turn."""
        ...

    @property
    def prompt_seq(self) -> int:
        """The number of the frame that carries the running turn's prompt; 0 without one."""
        ...

    @property
    def agent(self) -> Ref | None:
        """The actor of the agent's process, if there is one."""
        ...

    @property
    def attached(self) -> bool:
        """Whether the agent's process accepts frames."""
        ...

    @property
    def waits(self) -> bool:
        """Whether the agent waits for a caller's tool, a child or a decision."""
        ...

    def next_seq(self) -> int:
        """Return the number of one more frame for the agent, which must be attached."""
        ...

    def write(self, frame: StdinFrame) -> None:
        """Send a frame to the agent's process."""
        ...

    def begin_turn(self) -> None:
        """Begin the next turn, if there is one and nothing is in its way."""
        ...
