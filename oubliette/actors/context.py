"""Ports and settings that the domain actors share, built once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from oubliette.actors.callers_served import CallersServed
from oubliette.actors.session_registry import SessionRegistry, SessionTable
from oubliette.actors.start_pace import StartPace
from oubliette.errors import NotFound
from oubliette.ids import shown
from oubliette.runtime.agents.loopback_ports import LoopbackPorts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.actors.caller_board import CallerBoard
    from oubliette.actors.claims import Claims
    from oubliette.clock import Clock
    from oubliette.config.schema import Config
    from oubliette.kit import Ref
    from oubliette.records import Project
    from oubliette.runtime.agents.base import AgentRuntime, Availability
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.files.project_dirs import Folders
    from oubliette.runtime.snapshots.copies import CopyParts
    from oubliette.runtime.store.reader import Reader


class AgentTools(Protocol):
    """Oubliette's own tools, for an agent that presents a key."""

    async def tools(self, api_key: str, session_id: str) -> list[dict[str, Any]]:
        """The tools that this key may call on this session's link."""
        ...

    async def call(
        self, api_key: str, session_id: str, tool: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Call a tool; the answer has the shape of an MCP tool result."""
        ...


class KeyRing(Protocol):
    """The part of the API keys that sessions need."""

    async def end_session(self, session_id: str) -> None:
        """Revoke the keys that were minted for this session."""
        ...


class ProjectHomes(Protocol):
    """Homes of projects among the nodes of a cluster, as this node knows them."""

    @property
    def name(self) -> str: ...

    @property
    def draining(self) -> bool:
        """Whether the node is drained: its projects are to move elsewhere."""
        ...

    def ref(self, node: str, name: str) -> Ref: ...

    async def home(self, project_id: str, *, needed: bool) -> str | None:
        """Return the node on which a project lives; None: this one, or none.

        With `needed`, a project without a home gets one.

        Raises:
            Unavailable: its machine is lost, or no node can take it.
        """
        ...

    def forget(self, project_id: str) -> None:
        """Look a project's home up again at the next request."""
        ...

    async def projects_here(self) -> frozenset[str]: ...

    async def elsewhere(self, project_id: str) -> bool: ...

    async def place_here(self, project: Project) -> None:
        """Give a new project its home on this node.

        Raises:
            NotHere: there is no room for it any more.
        """
        ...

    async def leave(self, project_id: str) -> None:
        """Delete the placement of a project that is deleted."""
        ...

    async def take_over(self) -> list[str]:
        """Take over the projects of nodes that are gone, in which sessions live; return their ids.

        Raises:
            OublietteError: the database does not answer, or this node has lost its lease.
        """
        ...

    def lost_machine(self, session_id: str) -> str | None:
        """The machine that a session was on, if that is gone and with it the session."""
        ...

    def session_ended(self, session_id: str) -> None:
        """Forget the lost machine of a session that was ended for it."""
        ...


@dataclass(frozen=True, kw_only=True)
class ActorContext:
    """Ports and settings of one server. Actors read them; none has a field that they write."""

    config: Config
    clock: Clock
    home: Path
    instance: str
    """Id of the instance; in a cluster with the name of the node, whose containers carry it."""
    epoch: int
    """Number of server starts on this home: a newer one evicts an older link."""
    store: Ref
    reader: Reader
    folders: Folders
    runtime: ContainerRuntime
    agents: Mapping[str, AgentRuntime]
    missing_agents: Mapping[str, Availability]
    """Agents that cannot be used here, and the reason."""
    zipapp: Path
    runtime_base: Path
    """Folder for the folders of relay sockets."""
    loopback_ports: LoopbackPorts = field(default_factory=LoopbackPorts)
    """Those that agents need by the configuration."""
    agent_tools: AgentTools | None = None
    """None: agents get none of Oubliette's own tools."""
    claims: Claims | None = None
    """Limits over all nodes of a cluster; None: the server is alone."""
    keys: KeyRing | None = None
    caller_board: CallerBoard | None = None
    """State of callers that the nodes of a cluster share; None: this server is alone."""
    copies: CopyParts | None = None
    """Keeper of copies of snapshots; None: they are in a folder, or there are none."""
    homes: ProjectHomes | None = None
    """None: this server is alone, and every project is here."""
    session_registry: SessionRegistry = field(
        default_factory=lambda: SessionRegistry(SessionTable())
    )
    """Read-only view of what the SessionRegistryActor owns."""
    callers_served: CallersServed = field(default_factory=lambda: CallersServed(0.0))
    """From when on callers can be served; default: always."""
    start_pace: StartPace = field(default_factory=StartPace)
    """Lets agents that come back with a server start a few at a time."""

    async def projects_here(self) -> frozenset[str] | None:
        """Return the projects that have their home on this server; None: all."""
        return None if self.homes is None else await self.homes.projects_here()

    def agent(self, name: str) -> AgentRuntime:
        """The agent of a session, which an earlier server may have had.

        Raises:
            NotFound: this server has none of that name; the message has the reason and a remedy.
        """
        found = self.agents.get(name)
        if found is not None:
            return found
        missing = self.missing_agents.get(name)
        if missing is not None:
            reason = f"the agent {shown(name)} cannot be used here: {missing.reason}"
            raise NotFound(reason, hint=missing.remedy)
        raise NotFound(
            f"this server has no agent {shown(name)}",
            hint="start it with the program, the package or the configuration that adds that agent",
        )
