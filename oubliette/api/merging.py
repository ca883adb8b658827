"""Merges and pushes of a session's work, by programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.contract.changes import MergeInfo, PushInfo

if TYPE_CHECKING:
    from oubliette.api.context import ClientContext

MERGE_SECONDS: Final = 900.0
"""Time for an answer, for which other work on the repository may have to end first."""

PUSH_SECONDS: Final = 7200.0
"""Time for a push; the server's `repositories.clone_seconds` ends earlier."""


async def push_session(
    shared: ClientContext, session_id: str, branch: str, to: str | None
) -> PushInfo:
    """Push a branch of a session's project.

    Raises:
        OublietteError: the tool failed.
    """
    arguments = {"session_id": session_id, "branch": branch, "to": to}
    answer = await shared.call("session_push", arguments, timeout=PUSH_SECONDS)
    return msgspec.convert(answer, PushInfo)


async def merge_session(
    shared: ClientContext,
    session_id: str,
    into: str,
    *,
    strategy: str,
    turn: int | str | None,
    message: str | None,
    dry_run: bool,
    resolve: str | None,
    commits: str = "turns",
) -> MergeInfo:
    """Merge what a session has changed into a branch.

    Raises:
        OublietteError: the tool failed.
    """
    arguments = {
        "session_id": session_id,
        "into": into,
        "strategy": strategy,
        "turn": turn,
        "message": message,
        "dry_run": dry_run or None,
        "resolve": resolve,
        "commits": commits if commits != "turns" else None,
    }
    answer = await shared.call("session_merge", arguments, timeout=MERGE_SECONDS)
    return msgspec.convert(answer, MergeInfo)
