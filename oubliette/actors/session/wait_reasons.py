"""Reasons for which a session waits now, collected from the parts of its actor.

Nothing here changes any state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from oubliette.actors.agent_requests.tool_listing import LISTING_SECONDS
from oubliette.actors.session.ports import AgentPort
from oubliette.actors.session.session_end import END_LIMIT
from oubliette.actors.session.waits import SessionWaits, Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.agent_requests.router import AgentRequestRouter
    from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog
    from oubliette.actors.session.agent_handle import AgentHandle
    from oubliette.actors.session.permissions import Permissions


class WaitingSession(AgentPort, Protocol):
    """A session with all its parts, each of which reports its own waits."""

    watchdog: AgentWatchdog
    permissions: Permissions
    link: AgentRequestRouter
    process: AgentHandle

    @property
    def ending_since(self) -> float | None:
        """Wall second of the request to end; None without one."""
        ...

    @property
    def unstored_since(self) -> float | None:
        """Wall second since which the store does not accept its events; None: it does."""
        ...

    @property
    def quiet(self) -> bool:
        """Whether no turn runs and none waits."""
        ...

    @property
    def active_at(self) -> float:
        """Wall second of its last activity."""
        ...


def waits_of(session: WaitingSession) -> SessionWaits:
    """Return the waits of `session` as a whole, then those of its agent's requests."""
    found = [*_whole(session), *session.permissions.waits(), *session.link.waits()]
    if session.stopping:
        found.append(_end(session))
    elif not session.attached:
        found.append(_container(session))
        return SessionWaits(
            waits=tuple(found), container=session.unit.container.name, reached=_process(session)
        )
    else:
        found += session.watchdog.waits(busy=bool(found))
        if session.turn is None and not found:
            found.append(_message(session) if session.quiet else _listing(session))
    return SessionWaits(waits=tuple(found))


def _whole(session: WaitingSession) -> Iterator[Wait]:
    if session.unstored_since is not None:
        yield Wait(
            kind="storage",
            what="the database to take its events",
            since=session.unstored_since,
            detail="it is tried again and again; the server's log says what is wrong",
        )


def _end(session: WaitingSession) -> Wait:
    since = session.ending_since
    return Wait(
        kind="end",
        what="its agent to end",
        since=since,
        until=None if since is None else since + END_LIMIT,
    )


def _container(session: WaitingSession) -> Wait:
    """Return the wait for the container: its start or, once it is up, its link."""
    return Wait(
        kind="container",
        what="the link into its container",
        since=session.process.starting_since,
    )


def _process(session: WaitingSession) -> Wait:
    limit = session.context.config.agents.start_timeout_seconds
    return Wait(
        kind="agent",
        what=f"the process of its agent, {session.writer.record.agent}",
        since=session.process.starting_since,
        until=session.process.starting_since + limit,
    )


def _listing(session: WaitingSession) -> Wait:
    """Return the wait of a next turn that came with new tools."""
    since = session.link.tools.awaited_since
    return Wait(
        kind="agent",
        what="its agent to list the tools that its caller provides",
        since=since,
        until=None if since is None else since + LISTING_SECONDS,
        detail="the turn begins without them then",
    )


def _message(session: WaitingSession) -> Wait:
    since = session.active_at
    return Wait(
        kind="message",
        what="a message",
        since=since,
        until=since + session.context.config.sessions.idle_timeout_seconds,
        detail="without one the session ends then, and a message resumes it",
    )
