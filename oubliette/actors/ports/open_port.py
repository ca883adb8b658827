"""OpenedPort: the state of one open port, and the connections through it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oubliette.actors.ports.grants import LINK_SECONDS, PortGrants
from oubliette.actors.ports.messages import PortInfo, PortLink

if TYPE_CHECKING:
    from asyncio import StreamWriter

    from oubliette.kit import Deferred
    from oubliette.kit.timers import ActorTimer, PipedTask


@dataclass(eq=False)
class PortConnection:
    """A connection to an open port."""

    token_id: str
    """The key that let it in, itself or by a link."""
    writer: StreamWriter | None = None
    """None: it is being opened."""


@dataclass(eq=False)
class OpenedPort:
    """One open port; only the PortsActor uses it."""

    name: str
    session_id: str
    project_id: str
    principal: str
    port: int
    session: str
    """Name of the SessionActor."""
    unit: str
    """Name of the ContainerSupervisor."""
    opened_at: float
    closes_at: float
    """Wall-clock seconds."""
    container_id: str | None = None
    """None: the container is being started."""
    grants: PortGrants = field(default_factory=PortGrants)
    connections: dict[str, PortConnection] = field(default_factory=dict[str, PortConnection])
    """By id."""
    waiting: list[tuple[Deferred, str]] = field(default_factory=list["tuple[Deferred, str]"])
    """Those who wait for the container, and the ids of their keys."""
    timer: ActorTimer | None = None
    watch: PipedTask | None = None
    """Waits for the end of the container."""

    @property
    def lease(self) -> str:
        """The lease that keeps the container running."""
        return f"port:{self.name}"

    def info(self) -> PortInfo:
        return PortInfo(
            name=self.name,
            session_id=self.session_id,
            port=self.port,
            opened_at=self.opened_at,
            closes_at=self.closes_at,
            connections=len(self.connections),
        )

    def link(self, now: float, token_id: str) -> PortLink:
        """Return it with a new token of this key; `now` is the wall-clock second."""
        token = self.grants.token(now, token_id)
        return PortLink(info=self.info(), token=token, seconds=LINK_SECONDS)

    def cut(self, *connection_ids: str) -> None:
        """Close these connections at once."""
        for connection_id in connection_ids:
            writer = self.connections.pop(connection_id).writer
            if writer is not None:
                writer.transport.abort()
