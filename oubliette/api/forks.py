"""Forks of a session: what one began with, and how its agent knows the conversation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.api.changes import CALL_SECONDS

if TYPE_CHECKING:
    from oubliette.api.context import ClientContext

MADE_AT_ONCE: Final = 4
"""Forks that the server makes at a time."""


class ForkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Beginning of a session that is a fork."""

    forked_from: str
    """Id of the other session."""
    forked_at: str | None = None
    """Snapshot with whose files it began; None: there were none."""
    forked_at_turn: int = 0
    """Last turn of the conversation that it knows; 0: none."""
    conversation: str | None = None
    """`native`: its agent knows it; `transcript`: a record of it came before the prompt."""
    missing_count: int = 0
    """Files that are not as they were, as no snapshot has their content."""
    missing: dict[str, str] = {}
    """Some of them, and what is known."""


async def call_fork(shared: ClientContext, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Have a session forked; return the entry of each fork, with all that holds for it.

    It is not given up half way: those that were started are known to the program, which ends them
    with itself.
    """
    seconds = CALL_SECONDS * -(-int(arguments["count"]) // MADE_AT_ONCE)

    async def forked() -> list[dict[str, Any]]:
        answer = await shared.call("session_fork", arguments, timeout=seconds)
        entries = [{**answer, **each} for each in answer["sessions"]]
        for each in entries:
            if each["error"] is None:
                shared.started.setdefault(each["session_id"])
        return entries

    return await asyncio.shield(shared.start_session(forked()))
