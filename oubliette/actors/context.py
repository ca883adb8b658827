"""Ports and settings that the domain actors share, built once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from oubliette.actors.session_registry import SessionRegistry, SessionTable
from oubliette.errors import NotFound
from oubliette.ids import shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.clock import Clock
    from oubliette.config.schema import Config
    from oubliette.kit import Ref
    from oubliette.runtime.agents.base import AgentRuntime, Availability
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.files.project_dirs import Folders
    from oubliette.runtime.store.reader import Reader


class AgentTools(Protocol):
    """Oubliette's own tools, for an agent that presents a key."""

    async def tools(self, api_key: str, session_id: str) -> list[dict[str, Any]]:
        """Return the tools that this key may call on this session's link."""
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


@dataclass(frozen=True, kw_only=True)
class ActorContext:
    """Ports and settings of one server. Actors read them; none has a field that they write."""

    config: Config
    clock: Clock
    home: Path
    instance: str
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
    started: float
    """Monotonic second of this server's start."""
    runtime_base: Path
    """Folder for the folders of relay sockets."""
    agent_tools: AgentTools | None = None
    """None: agents get none of Oubliette's own tools."""
    keys: KeyRing | None = None
    session_registry: SessionRegistry = field(
        default_factory=lambda: SessionRegistry(SessionTable())
    )
    """Read-only view of what the SessionRegistryActor owns."""

    def agent(self, name: str) -> AgentRuntime:
        """Return the agent of a session, which an earlier server may have had.

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
