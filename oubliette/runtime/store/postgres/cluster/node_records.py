"""Records of the nodes of a cluster, and of what a project needs of one."""

from __future__ import annotations

from typing import Literal

from oubliette.records import Record

NodeState = Literal["running", "draining", "gone"]


class NodeLoad(Record, frozen=True):
    """Resources of a node that are taken."""

    memory_bytes: int = 0
    """By any program of its machine, or given to containers in which sessions live."""
    processors: float = 0.0
    live_sessions: int = 0


class NodeOffer(Record, frozen=True):
    """Resources of a node; one of which it has 0 is not there."""

    memory_bytes: int = 0
    processors: float = 0.0
    live_sessions: int = 0
    """Maximum of live sessions."""
    runtimes: tuple[str, ...] = ()
    """Container runtimes by name, such as `docker`."""
    container_types: tuple[str, ...] = ()
    """Container types that projects on it can have."""
    limits_containers: bool = True
    """Whether a container has limits of memory and processors; without them none is kept for it."""
    labels: dict[str, str] = {}


class NodeRecord(Record, frozen=True):
    """One node, as of the moment at which the database was read."""

    name: str
    epoch: int
    state: NodeState
    lease_seconds: float
    """Time until its lease ends; negative: since it ended."""
    uptime_seconds: float
    """Time since it took its epoch."""
    address: str
    offer: NodeOffer
    load: NodeLoad


class ProjectNeeds(Record, frozen=True):
    """Resources that a node must have for a project."""

    memory_bytes: int = 0
    """Of each of its containers."""
    processors: float = 0.0
    """Number that each of its containers can use."""
    isolated: bool = False
    """Whether each of its workspaces has a container of its own."""
    live_sessions: int = 1
    runtime: str | None = None
    """Container runtime; None: any."""
    container_type: str | None = None
    """Container type; None: the one that every node has."""
    labels: dict[str, str] = {}
    """Labels that the node must have, with these values."""


class ProjectHome(Record, frozen=True):
    """Home of a project."""

    project_id: str
    node: str
    epoch: int
    """Epoch of the node when the project was placed."""
    state: NodeState
    """State of the node now; a project on one that is gone may be placed elsewhere."""


class ListenerRow(Record, frozen=True):
    """State of a caller that all nodes share, as of the moment at which the database was read."""

    principal: str
    caller_id: str
    project: str
    """Project that its keys are bound to; empty: to none."""
    node: str
    """Node of its newest provider."""
    generation: int
    """Number of that provider, higher than those before it; 0: it never had one."""
    change: int
    """Number of the latest change that was notified."""
    held: bool
    """Whether the provider is open, as of its node's latest word."""
    seconds: float
    """Time for which the caller counts as present; negative: since when it does not."""
    reason: str
    """Reason why it is absent, once it is."""
    tools: str | None
    """Tools that it provides, as JSON; None: it never provided any."""
    delivered: int | None
    """Seq up to which it has received events, as of its latest release; None: unknown."""
