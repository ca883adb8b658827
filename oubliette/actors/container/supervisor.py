"""Supervisors of one container: its actor, its links, its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.container.actor import ContainerActor
from oubliette.actors.container.guest_connection import (
    ContainerRefs,
    GuestConnection,
    GuestConnectionState,
)
from oubliette.actors.container.lease_memory import LeaseMemory
from oubliette.actors.container.messages import UnitUnused
from oubliette.actors.relay.actor import SocketActor
from oubliette.actors.relay.session_links import LinkMemory
from oubliette.actors.session.actor import SessionActor
from oubliette.actors.session.state import SessionMemory
from oubliette.actors.session_registry import (
    REGISTRY,
    EnterSession,
    GetSupervised,
    LeaveSession,
)
from oubliette.actors.store.outages import once_back
from oubliette.kit import ChildSpec, DynamicSupervisor, Message, Reply, Supervisor, handles
from oubliette.kit.retry import BACKOFF, ask_with_retry
from oubliette.runtime.containers.options import accepts_bare, options_of

if TYPE_CHECKING:
    from oubliette.actors.container.messages import ContainerKey
    from oubliette.actors.context import ActorContext
    from oubliette.records import Project


class StartSession(Message, Reply[None]):
    """To a ContainerSupervisor: run this session, which is in the store."""

    session_id: str
    resumed: bool = False
    """Whether it was resumed: an actor that still runs it is about to end."""


class KeepApiKey(Message, Reply[None]):
    """To a ContainerSupervisor: a key for the agent of a session that is about to be stored.

    Sent first, because a supervisor that starts finds the session in the store and runs it.
    """

    session_id: str
    api_key: str | None
    """None: forget it, the session was not stored."""


class ContainerSupervisor(Supervisor):
    """one_for_one supervisor of the ContainerActor, the SocketActor and the SessionsActor.

    Each keeps its memory over its restarts.
    """

    def __init__(self, context: ActorContext, project: Project, key: ContainerKey) -> None:
        options = options_of(context.config, key.container_type, project)
        unit = ContainerRefs(
            socket=self.system.ref(f"{self.name}/socket"),
            container=self.system.ref(f"{self.name}/container"),
        )
        guest = GuestConnectionState()
        leases = LeaseMemory(options.memory_mb if context.runtime.capabilities.images else None)
        children = [
            ChildSpec(
                name="socket",
                cls=SocketActor,
                args=(context, guest, unit.container, LinkMemory()),
                kwargs={"accept_bare": accepts_bare(context.config, project)},
            ),
            ChildSpec(
                name="container",
                cls=ContainerActor,
                args=(context, GuestConnection(guest), unit.socket, leases),
                kwargs={"project": project, "key": key},
                shutdown=8.0,
            ),
            ChildSpec(
                name="sessions",
                cls=SessionsActor,
                args=(context, unit, project.id, key.workspace_id),
            ),
        ]
        super().__init__(children, max_restarts=20, within=10.0, backoff=BACKOFF)

    @handles(UnitUnused)
    def _unused(self, message: UnitUnused) -> None:
        project = self.system.lookup(self.name.rpartition("/")[0])
        if project is not None:
            project.tell(message)

    @handles(StartSession, KeepApiKey)
    async def _pass_on(self, message: StartSession | KeepApiKey) -> None:
        await self.system.ref(f"{self.name}/sessions").ask(message)


class SessionsActor(DynamicSupervisor):
    """Supervisor of the sessions of one container: those that are live in the store.

    A session that fails again and again ends itself (see SessionActor).
    """

    def __init__(
        self,
        context: ActorContext,
        unit: ContainerRefs,
        project_id: str,
        workspace_id: str | None,
    ) -> None:
        super().__init__()
        self._context = context
        self._unit = unit
        self._project_id = project_id
        self._workspace_id = workspace_id
        self._api_keys: dict[str, str] = {}
        """Session id → the key for its agent, of sessions that are about to start."""

    async def on_start(self) -> None:  # type: ignore[override]
        """Recover the live sessions of an earlier server or actor."""
        super().on_start()
        read = self._context.reader.live_sessions
        project_id, workspace_id = self._project_id, self._workspace_id
        for session in await once_back(lambda: read(project_id, workspace_id=workspace_id)):
            await self._begin(session.id, paced=True)

    @handles(StartSession)
    async def _start_session(self, message: StartSession) -> None:
        if self.has_child(message.session_id):
            if not message.resumed:
                return
            await self.end_child(message.session_id)
        await self._begin(message.session_id)

    @handles(KeepApiKey)
    def _keep_api_key(self, message: KeepApiKey) -> None:
        if message.api_key is None:
            self._api_keys.pop(message.session_id, None)
        else:
            self._api_keys[message.session_id] = message.api_key

    async def _begin(self, session_id: str, *, paced: bool = False) -> None:
        memory = SessionMemory(self._api_keys.pop(session_id, None), paced=paced)
        name = self.ensure_child(
            ChildSpec(
                name=session_id,
                cls=SessionActor,
                args=(self._context, self._unit, session_id, memory),
                restart="transient",
            )
        )
        registry = self.system.ref(REGISTRY)
        entry = EnterSession(session_id=session_id, name=name, supervisor=self.name)
        await ask_with_retry(lambda: registry.ask(entry))

    def on_forgotten(self, name: str) -> None:
        """Remove the session from the registry, if it has not left it at its end."""
        self.system.ref(REGISTRY).tell(LeaveSession(session_id=name, name=f"{self.name}/{name}"))

    @handles(GetSupervised)
    def _supervised(self, _: GetSupervised) -> tuple[str, ...]:
        return self.children


__all__ = ["ContainerSupervisor", "SessionsActor", "StartSession"]
