"""Reasons for which a session waits now, collected from the parts of its actor.

Nothing here changes any state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oubliette.actors.agent_requests.tool_listing import LISTING_SECONDS
from oubliette.actors.session.session_end import END_LIMIT
from oubliette.actors.session.waits import SessionWaits, Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.agent_requests.router import AgentRequestRouter
    from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog, WatchInput
    from oubliette.actors.session.permissions import Permissions
    from oubliette.config.schema import Config


class WaitingSession(NamedTuple):
    """A session with its parts, each of which reports its own waits. Times are wall seconds."""

    config: Config
    container: str
    """Name of the ContainerActor."""
    given: WatchInput
    watchdog: AgentWatchdog
    permissions: Permissions
    router: AgentRequestRouter
    starting_since: float
    """Second at which the latest stage of the agent's start began."""
    unstored_since: float | None
    """Second since which the store does not accept its events; None: it does."""
    ending_since: float | None
    """Second at which its end was requested; None: it was not."""
    stopping: bool
    """Whether it accepts nothing new."""
    quiet: bool
    """Whether no turn runs and none waits."""
    rests: bool
    """Whether its agent starts with the next message."""
    active_at: float
    """Second of its last activity."""


def waits_of(session: WaitingSession) -> SessionWaits:
    """Return the waits of `session` as a whole, then those of its agent's requests."""
    found = [*_whole(session), *session.permissions.waits(), *session.router.waits()]
    if session.stopping:
        found.append(_end(session))
    elif session.rests:
        found.append(_message(session))
    elif not session.given.attached:
        found.append(_container(session))
        return SessionWaits(
            waits=tuple(found), container=session.container, reached=_process(session)
        )
    else:
        found += session.watchdog.waits(session.given, busy=bool(found))
        if session.given.turn is None and not found:
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
    """The wait for the container: its start or, once it is up, its link."""
    return Wait(
        kind="container",
        what="the link into its container",
        since=session.starting_since,
    )


def _process(session: WaitingSession) -> Wait:
    limit = session.config.agents.start_timeout_seconds
    return Wait(
        kind="agent",
        what=f"the process of its agent, {session.given.record.agent}",
        since=session.starting_since,
        until=session.starting_since + limit,
    )


def _listing(session: WaitingSession) -> Wait:
    """The wait of a next turn that came with new tools."""
    since = session.router.tools.awaited_since
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
        until=since + session.config.sessions.idle_timeout_seconds,
        detail="without one the session ends then, and a message resumes it",
    )
