"""Records of the nodes of a cluster, and of what a project needs of one."""

from __future__ import annotations

from typing import Literal

from oubliette.records import Record

NodeState = Literal["running", "draining", "gone"]


class NodeLoad(Record, frozen=True):
    """Resources of a node that are taken."""

    memory_bytes: int = 0
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
    """Resources that a node must have free for a project."""

    memory_bytes: int = 0
    processors: float = 0.0
    live_sessions: int = 1
    runtime: str | None = None
    """Container runtime; None: any."""
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
    """Listener of a caller, the newest one."""

    principal: str
    caller_id: str
    node: str
    generation: int
