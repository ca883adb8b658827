"""ToolServices, the dependencies of the tools' handlers; built once by `startup.py`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.actors.messages import (
    CallerSeen,
    GetProblem,
    OpenCaller,
    OpenProject,
    caller_actor_name,
)
from oubliette.errors import NotFound
from oubliette.kit import ActorDead, AskTimeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from oubliette.clock import Clock
    from oubliette.config.schema import Config
    from oubliette.kit import Message, Ref
    from oubliette.records import Project
    from oubliette.runtime.audit_log import AuditLog
    from oubliette.runtime.containers.images import Imaging
    from oubliette.runtime.store.operations import Commit, Op, Result
    from oubliette.runtime.store.reader import Reader
    from oubliette.tools.auth.api_keys import ApiKeys
    from oubliette.tools.auth.rate_limits import RateLimits
    from oubliette.tools.caller_listen import CallerListen, CallerListenResult
    from oubliette.tools.home_nodes import HomeNodes
    from oubliette.tools.spec import CallContext

PROBLEM_SECONDS: Final = 5.0
"""Time for a project to look at its folders."""
KNOWN_SESSIONS: Final = 10_000
"""Maximum of sessions whose owner and project are cached; neither ever changes."""


class ServerCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Options of this server, for `project_options` and for the check of names."""

    agents: tuple[str, ...] = ()
    missing_agents: dict[str, tuple[str, str]] = {}
    """Agents that are not available: name → reason and remedy."""
    models: tuple[str, ...] = ()
    """Empty: any name is passed on to the agent."""
    container_types: tuple[str, ...] = ()
    """Empty: any name is passed on."""
    runtimes: tuple[str, ...] = ()


class SessionOwnership(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that decide about rights on a session; none of them ever changes."""

    session_id: str
    project_id: str
    principal: str


def commits(store: Ref) -> Commit:
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
    """The actor that creates, opens and deletes projects; its name is `projects`."""
    callers: Ref
    """The actor that opens CallerActors; its name is `callers`."""
    find_session: Callable[[str], Ref | None]
    """Session id → its actor, if it is live (`SessionRegistry.session`)."""
    find_actor: Callable[[str], Ref | None]
    """Name → a live actor (`System.lookup`)."""
    name_actor: Callable[[str], Ref]
    """Name → a ref that is resolved at each send (`System.ref`)."""
    spawn: Callable[..., Ref] | None = None
    """Starts an actor (`System.spawn`); None: no progress is reported."""
    store: Ref | None = None
    """The StoreActor; None: nothing is written here, so that no call waits for events."""
    offers: ServerCapabilities = field(default_factory=ServerCapabilities)
    ask_live: Callable[[str, Message, float], Awaitable[Any]] | None = None
    """Ask a live session, and its successor if it is being restarted (`SessionRegistry.ask`)."""
    appears: Callable[[str], Awaitable[bool]] | None = None
    """Wait a little until this session has an actor (`SessionRegistry.appears`)."""
    audit: AuditLog | None = None
    """Log of calls; None: calls are not logged (embedding programs)."""
    rates: RateLimits | None = None
    """Limits on principals' calls per second; None: none."""
    imaging: Imaging | None = None
    """Images of container types; None: this server has no containers."""
    forget_session: Callable[[str, str], Awaitable[object]] | None = None
    """Removes the files of a purged session, given project id and session id."""
    listen: Callable[[CallContext, CallerListen], Awaitable[CallerListenResult]] | None = None
    """Serves `caller_listen` (`ListenService`); None until the front is started."""
    port_address: Callable[[str], str] | None = None
    """Name of an open port → its address for browsers; None: nothing is served over HTTP."""
    look: Callable[[Project, Collection[str]], str | None] | None = None
    """Looks at the folders of a project and some of its workspaces (`Folders.problem`); it blocks.
    None: this process has no folders."""
    nodes: HomeNodes | None = None
    """Machines of the cluster; None: this one is the only one."""
    _owned: dict[str, SessionOwnership] = field(default_factory=dict[str, SessionOwnership])

    def session_ref(self, session_id: str) -> Ref | None:
        return self.find_session(session_id)

    async def ask_session(self, session_id: str, message: Message, timeout: float) -> Any:
        """Ask the session's actor something that may be handled twice.

        Raises:
            NotFound: the session is not live.
            Unavailable: it is being restarted, and that takes long.
            ActorDead: its actor has just ended.
        """
        if self.ask_live is not None:
            return await self.ask_live(session_id, message, timeout)
        ref = self.find_session(session_id)
        if ref is None:
            raise session_not_found(session_id)
        return await ref.ask(message, timeout)

    async def project_ref(self, project_id: str) -> Ref:
        """Return the running ProjectActor; start it if necessary.

        Raises:
            NotFound: there is no such project.
        """
        return self.name_actor(await self.projects.ask(OpenProject(project_id=project_id)))

    async def problem_of(self, project_id: str, workspace_id: str | None = None) -> str | None:
        """Return why a project, or one of its workspaces, cannot be used; None: nothing is known.

        A project that is not open stays so; its folders are looked at, and nothing is made.
        """
        if self.find_actor("projects") is None:
            return None  # the command line reads a database
        project = self.name_actor(f"projects/{project_id}")
        try:
            return await project.ask(GetProblem(workspace_id=workspace_id), PROBLEM_SECONDS)
        except ActorDead as error:
            if error.reason is not None:
                return error.reason
        except AskTimeout as error:
            return error.message
        record = await self.reader.project(project_id)
        if record is None:
            return None
        if workspace_id is not None:
            return (await self.problems_of([(record, [workspace_id])])).get(project_id)
        known = await self.reader.workspaces(project_id)
        return (await self.problems_of([(record, [each.id for each in known])])).get(project_id)

    async def problems_of(
        self, projects: Sequence[tuple[Project, Sequence[str]]]
    ) -> dict[str, str]:
        """Return why the folders of projects and of these workspaces cannot be used, by project.

        They are looked at as they are; nothing is made, and no project is opened.
        """
        look = self.look
        if look is None:
            return {}
        found = await asyncio.to_thread(
            lambda: {project.id: look(project, workspaces) for project, workspaces in projects}
        )
        return {project_id: reason for project_id, reason in found.items() if reason is not None}

    async def caller_ref(self, principal: str, caller_id: str) -> Ref:
        """Return the running CallerActor of this caller; start it if necessary."""
        found = self.find_actor(caller_actor_name(principal, caller_id))
        if found is not None:
            return found
        name = await self.callers.ask(OpenCaller(principal=principal, caller_id=caller_id))
        return self.name_actor(name)

    async def caller_seen(self, principal: str, caller_id: str) -> None:
        """Count the current call of this caller as presence."""
        (await self.caller_ref(principal, caller_id)).tell(CallerSeen())

    async def owned(self, session_id: str) -> SessionOwnership:
        """Return the owner and project of a session; cached, since it is on the hot path.

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
        self._owned.pop(session_id, None)


def session_not_found(session_id: str) -> NotFound:
    """One error for a session that does not exist and for one that the key must not see."""
    return NotFound(f"session {session_id} not found", hint="session_list shows the sessions")


def project_not_found(project_id: str) -> NotFound:
    """One error for a project that does not exist and for one that the key must not see."""
    return NotFound(f"project {project_id} not found", hint="project_list shows the projects")
