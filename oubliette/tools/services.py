"""What the tools' handlers may reach; built once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.actors.messages import CallerSeen, OpenCaller, OpenProject, caller_actor_name
from oubliette.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.clock import Clock
    from oubliette.config.schema import Config
    from oubliette.kit import Message, Ref
    from oubliette.runtime.audit_log import AuditLog
    from oubliette.runtime.containers.images import Imaging
    from oubliette.runtime.store.operations import Commit, Op, Result
    from oubliette.runtime.store.reader import Reader
    from oubliette.tools.auth.api_keys import ApiKeys
    from oubliette.tools.auth.rate_limits import RateLimits
    from oubliette.tools.caller_listen import CallerListen, CallerListenResult
    from oubliette.tools.spec import CallContext

KNOWN_SESSIONS: Final = 10_000
"""Sessions whose owner and project are remembered; neither ever changes."""


class ServerCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this server can run, for `project_options` and to check names against."""

    agents: tuple[str, ...] = ()
    missing_agents: dict[str, tuple[str, str]] = {}
    """Those that cannot be used here: why, and what to do about it."""
    models: tuple[str, ...] = ()
    """Empty: any name is passed on to the agent."""
    container_types: tuple[str, ...] = ()
    """Empty: any name is passed on."""
    runtimes: tuple[str, ...] = ()


class SessionOwnership(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about rights on a session; none of it ever changes."""

    session_id: str
    project_id: str
    principal: str


def commits(store: Ref) -> Commit:
    """A `Commit` that asks the StoreActor."""
    from oubliette.actors.store.actor import Transact

    async def commit(ops: tuple[Op, ...]) -> Result:
        return await store.ask(Transact(ops=ops))

    return commit


@dataclass(kw_only=True)
class ToolServices:
    """The parts of a server that tools use."""

    config: Config
    clock: Clock
    reader: Reader
    commit: Commit
    keys: ApiKeys
    projects: Ref
    """Named `projects`: creates, opens and deletes them."""
    callers: Ref
    """Named `callers`: opens CallerActors."""
    find_session: Callable[[str], Ref | None]
    """Session id → its actor, if it is live (`SessionRegistry.session`)."""
    find_actor: Callable[[str], Ref | None]
    """Name → a live actor (`System.lookup`)."""
    name_actor: Callable[[str], Ref]
    """Name → a ref that is resolved at each send (`System.ref`)."""
    offers: ServerCapabilities = field(default_factory=ServerCapabilities)
    ask_live: Callable[[str, Message, float], Awaitable[Any]] | None = None
    """Ask a live session, and its successor if it is being restarted (`SessionRegistry.ask`)."""
    appears: Callable[[str], Awaitable[bool]] | None = None
    """Wait a little until somebody runs this session (`SessionRegistry.appears`)."""
    audit: AuditLog | None = None
    """Where calls are noted; None: nowhere (embedding programs)."""
    rates: RateLimits | None = None
    """How often principals may call; None: as often as they like."""
    imaging: Imaging | None = None
    """Images of container types; None: this server has no containers."""
    forget_session: Callable[[str, str], Awaitable[object]] | None = None
    """(project id, session id) of a session that was purged: remove its files."""
    listen: Callable[[CallContext, CallerListen], Awaitable[CallerListenResult]] | None = None
    """Serves `caller_listen` (`ListenService`); None until the front is started."""
    _owned: dict[str, SessionOwnership] = field(default_factory=dict[str, SessionOwnership])

    def session_ref(self, session_id: str) -> Ref | None:
        """The actor of this session, if it is live."""
        return self.find_session(session_id)

    async def ask_session(self, session_id: str, message: Message, timeout: float) -> Any:
        """Ask the session's actor something that may be handled twice.

        Raises:
            NotFound: the session is not live.
            Unavailable: it is being restarted, and that takes long.
            ActorDead: it has just come to rest.
        """
        if self.ask_live is not None:
            return await self.ask_live(session_id, message, timeout)
        ref = self.find_session(session_id)
        if ref is None:
            raise session_not_found(session_id)
        return await ref.ask(message, timeout)

    async def project_ref(self, project_id: str) -> Ref:
        """The running ProjectActor; starts it.

        Raises:
            NotFound: there is no such project.
        """
        return self.name_actor(await self.projects.ask(OpenProject(project_id=project_id)))

    async def caller_ref(self, principal: str, caller_id: str) -> Ref:
        """The running CallerActor of this caller; starts it."""
        found = self.find_actor(caller_actor_name(principal, caller_id))
        if found is not None:
            return found
        name = await self.callers.ask(OpenCaller(principal=principal, caller_id=caller_id))
        return self.name_actor(name)

    async def caller_seen(self, principal: str, caller_id: str) -> None:
        """Count what this caller just did as a sign of life."""
        (await self.caller_ref(principal, caller_id)).tell(CallerSeen())

    async def owned(self, session_id: str) -> SessionOwnership:
        """Who owns a session and where it belongs; remembered, since it is on the hot path.

        Raises:
            NotFound: there is no such session.
        """
        known = self._owned.get(session_id)
        if known is None:
            record = await self.reader.session(session_id)
            if record is None:
                raise session_not_found(session_id)
            known = SessionOwnership(
                session_id=session_id, project_id=record.project_id, principal=record.principal
            )
            if len(self._owned) >= KNOWN_SESSIONS:
                self._owned.pop(next(iter(self._owned)))
            self._owned[session_id] = known
        return known

    def forget(self, session_id: str) -> None:
        """The session was purged."""
        self._owned.pop(session_id, None)


def session_not_found(session_id: str) -> NotFound:
    """One answer for what is not there and for what the asker may not know of."""
    return NotFound(f"session {session_id} not found", hint="session_list shows the sessions")


def project_not_found(project_id: str) -> NotFound:
    """One answer for what is not there and for what the asker may not know of."""
    return NotFound(f"project {project_id} not found", hint="project_list shows the projects")
