"""Reasons why a session waits: `waiting` of `session_get`, asked of the actors concerned."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oubliette.actors.caller.messages import CallerState, GetCaller
from oubliette.actors.messages import caller_actor_name
from oubliette.actors.session.waits import (
    ContainerStartProgress,
    GetStart,
    GetWaits,
    SessionWaits,
    Wait,
)
from oubliette.contract.session import WaitInfo
from oubliette.errors import NotFound, Unavailable
from oubliette.kit import ActorError
from oubliette.records import TERMINAL, made_of

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.tools.services import ToolServices

ASK_SECONDS: Final = 5.0
"""Seconds for an actor to answer: a stuck one must not block the tool."""


async def waiting_of(services: ToolServices, session: records.Session) -> tuple[WaitInfo, ...]:
    """Return what `session` waits for now; at least one entry, even if the reason is unknown.

    It never fails: an actor that does not answer is reported as such.
    """
    if session.status in TERMINAL:
        return (_ended(session),)
    if services.session_ref(session.id) is None:
        return (_unheld(session),)
    try:
        found: SessionWaits = await services.ask_session(session.id, GetWaits(), ASK_SECONDS)
    except (ActorError, NotFound, Unavailable) as error:
        now = await services.reader.session(session.id)
        if now is not None and now.status in TERMINAL:
            return (_ended(now),)
        return (_unheld(session, f"its actor did not answer: {error.message}"),)
    waits = list(found.waits)
    if found.container is not None:
        waits = [await _container(services, found, wait, session.id) for wait in waits]
    return tuple(await asyncio.gather(*(_view(services, wait) for wait in waits)))


def _ended(session: records.Session) -> WaitInfo:
    more = (
        "it was ended for good" if session.ended_by is not None else "session_message wakes it up"
    )
    why = f" ({session.status_reason})" if session.status_reason else ""
    return WaitInfo(
        kind="ended",
        what=f"nothing: it has {session.status.replace('_', ' ')}{why}",
        since=session.ended_at,
        detail=more,
    )


def _unheld(session: records.Session, detail: str | None = None) -> WaitInfo:
    return WaitInfo(
        kind="server",
        what="a server to take it over",
        since=session.updated_at,
        detail=detail or "a server that starts takes up its sessions one by one",
    )


async def _container(
    services: ToolServices, found: SessionWaits, wait: Wait, session_id: str
) -> Wait:
    """The details of the container's actor if `wait` is for the container, else `wait`."""
    if wait.kind != "container" or found.container is None:
        return wait
    try:
        start: ContainerStartProgress | None = await services.name_actor(found.container).ask(
            GetStart(session_id=session_id), ASK_SECONDS
        )
    except ActorError:  # being restarted, or busy with the engine: the session knows the rest
        return wait
    if start is None:
        return found.reached or wait
    return made_of(start, Wait, since=start.since or wait.since)


async def _view(services: ToolServices, wait: Wait) -> WaitInfo:
    present, absent = await _presence(services, wait.caller)
    return made_of(
        wait,
        WaitInfo,
        detail="; ".join(part for part in (absent, wait.detail) if part) or None,
        caller_id=None if wait.caller is None else wait.caller[1],
        caller_present=present,
    )


async def _presence(
    services: ToolServices, caller: tuple[str, str] | None
) -> tuple[bool | None, str | None]:
    """Return whether this caller is present, and why not."""
    if caller is None:
        return None, None
    ref = services.find_actor(caller_actor_name(*caller))
    if ref is None:
        return False, f"caller {caller[1]} has not been seen since the server's start"
    try:
        state: CallerState = await ref.ask(GetCaller(), ASK_SECONDS)
    except ActorError:
        return None, None
    if state.present:
        return True, f"caller {caller[1]} is connected"
    return False, f"caller {caller[1]} is not connected: {state.reason}"
