"""Sessions of a tree whose actors are on this node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oubliette.actors.session.messages import IsBlocked
from oubliette.kit import ActorError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref

ASK_SECONDS: Final = 2.0
"""Seconds that a session has for answering whether its agent waits."""


def local_session(context: ActorContext, session_id: str) -> Ref | None:
    """The session's actor, if it is on this node and lives."""
    ref = context.session_registry.session(session_id)
    return ref if ref is not None and ref.is_alive() else None


async def who_waits(context: ActorContext, session_ids: Iterable[str]) -> frozenset[str]:
    """The live sessions of this node whose agents wait for children.

    One that does not answer in time counts as working until it reports otherwise.
    """

    async def ask(session_id: str) -> str | None:
        session = local_session(context, session_id)
        if session is None:
            return None
        try:
            return session_id if await session.ask(IsBlocked(), ASK_SECONDS) else None
        except ActorError:
            return None

    return frozenset(filter(None, await asyncio.gather(*map(ask, session_ids))))
