"""Waits of a session, as its parts report them. Times are wall seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.kit import Message, Reply

Kind = Literal[
    "message",  # nothing runs: for a message
    "model",  # a turn runs, and no other activity is known
    "tool",  # a tool of the agent's own runs
    "caller_tool",  # a caller runs a tool that it provides
    "child",  # another session's turn
    "permission",  # a person's decision
    "place",  # parts of a session_map, or memory in its container: for others to end
    "container",  # a stage of its container's start, or the link to the container
    "agent",  # the agent's process, to start or to be ready
    "interrupt",  # the agent, to obey an interrupt
    "end",  # the agent, to end
    "storage",  # the database, to accept its events
    "server",  # a server, to recover it
    "ended",  # nothing: it has ended
]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for which a session waits."""

    kind: Kind
    what: str
    """Object of the sentence "it waits for …"."""
    since: float | None = None
    until: float | None = None
    """Time at which it is given up; None: never, or not known."""
    detail: str | None = None
    session_id: str | None = None
    """The child that is waited for."""
    caller: tuple[str, str] | None = None
    """Principal and id of the caller that is to answer."""
    last_event_at: float | None = None
    """Time of the agent's last sign of life."""


class SessionWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to GetWaits."""

    waits: tuple[Wait, ...]
    container: str | None = None
    """Name of the ContainerActor with the details, while the agent has not been reached."""
    reached: Wait | None = None
    """The wait in place of that for the container, if the ContainerActor knows of none."""


class GetWaits(Message, Reply[SessionWaits]):
    """To a SessionActor: request for its current waits. There is at least one entry."""


class ContainerStartProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a container that is not up."""

    what: str
    since: float | None = None
    until: float | None = None
    detail: str | None = None
    kind: Kind = "container"


class GetStart(Message, Reply[ContainerStartProgress | None]):
    """To a ContainerActor: request for what its start waits for; None if it is up, or idle."""

    session_id: str = ""
    """A session whose agent has not been reached: what that waits for, of memory and the link too.
    """
