"""What a session waits for, in the words in which its parts tell it. Times are wall seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.kit import Message, Reply

Kind = Literal[
    "message",  # nothing runs: for somebody to say something
    "model",  # a turn runs, and nothing else is known to be under way
    "tool",  # a tool of the agent's own runs
    "caller_tool",  # a caller runs a tool that it lends
    "child",  # another session's turn
    "permission",  # a person decides
    "place",  # parts of a session_map, or memory in its container: for others to end
    "container",  # a stage of its container's start, or the way into the container
    "agent",  # the agent's process, to start or to be ready
    "interrupt",  # the agent, to heed an interrupt
    "end",  # the agent, to end
    "storage",  # the database, to take its events
    "server",  # a server, to take it over
    "ended",  # nothing: it has ended
]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a session waits for."""

    kind: Kind
    what: str
    """Completes the sentence "it waits for …"."""
    since: float | None = None
    until: float | None = None
    """When it is given up; None: never, or not known."""
    detail: str | None = None
    session_id: str | None = None
    """The child that is waited for."""
    caller: tuple[str, str] | None = None
    """Principal and id of the caller that is to answer."""
    last_event_at: float | None = None
    """When the agent gave its last sign of life."""


class SessionWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to GetWaits."""

    waits: tuple[Wait, ...]
    container: str | None = None
    """Name of the ContainerActor that knows more, while the session waits for a container."""


class GetWaits(Message, Reply[SessionWaits]):
    """To a SessionActor: what it waits for now. There is at least one entry."""


class ContainerStartProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a container is that is not up."""

    what: str
    since: float | None = None
    until: float | None = None
    detail: str | None = None


class GetStart(Message, Reply[ContainerStartProgress | None]):
    """To a ContainerActor: what its start waits for; None where the container is up, or idle."""
