"""MergeInfo and PushInfo, outcomes of merges and pushes of a session's work, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from oubliette.api.context import ClientContext

MERGE_SECONDS: Final = 900.0
"""Time for an answer, for which other work on the repository may have to end first."""

PUSH_SECONDS: Final = 7200.0
"""Time for a push; the server's `repositories.clone_seconds` ends earlier."""


class ConflictStageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a path in a conflict."""

    stage: str
    """`base`: both began with it; `ours`: the branch's; `theirs`: the session's."""
    mode: str
    """As git has it: `100644`."""
    oid: str
    """Name of the content."""


class ConflictInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A path that git cannot merge."""

    path: str
    """Path in the repository; bytes that are no UTF-8 are written as `\\xNN`."""
    kind: str
    """As git names it: `contents`, `modify/delete`, `binary` …"""
    message: str
    stages: tuple[ConflictStageInfo, ...] = ()


class MergeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a merge."""

    session_id: str
    into: str
    strategy: str
    snapshot: str
    """Name of the snapshot that was merged."""
    dry_run: bool = False
    merged: bool
    """Whether the branch has new commits, or would have with `dry_run`."""
    up_to_date: bool = False
    """Whether there was nothing to merge."""
    created: bool = False
    """Whether the branch is new in the project's repository."""
    fast_forward: bool = False
    """Whether the branch had nothing else, so that nothing was combined."""
    base: str
    """Commit that the workspace was made of."""
    before: str | None = None
    """Commit of the branch before; None: it did not exist."""
    commit: str | None = None
    """Commit of the branch now; None: it is as it was. With `dry_run` it is not kept."""
    commits: int = 0
    """Commits that came to the branch."""
    files: int = 0
    insertions: int = 0
    """Lines."""
    deletions: int = 0
    """Lines."""
    conflicts: tuple[ConflictInfo, ...] = ()
    """With any, nothing was merged."""
    conflicts_count: int = 0
    conflict_with: str | None = None
    """Side that does not fit: `the session`, `turn 2`, or `origin/<branch>`."""
    resolving_session_id: str | None = None
    """Session that resolves the conflicts; merge it once its turn has ended."""
    ignored: tuple[str, ...] = ()
    """Some new files that stay out because `.gitignore` names them."""
    ignored_count: int = 0
    left_out: dict[str, str] = {}
    """Some files whose changes no snapshot has, with the reasons."""
    left_out_count: int = 0


class PushInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a push."""

    session_id: str
    branch: str
    to: str
    """Name of the branch in the other repository."""
    repository: str
    """Address of the other repository."""
    pushed: bool
    """Whether the branch has new commits there."""
    up_to_date: bool = False
    """Whether it had them already."""
    created: bool = False
    """Whether the branch is new there."""
    before: str | None = None
    """Commit of the branch there before; None: it did not exist."""
    commit: str | None = None
    """Commit of the branch; None: the session could not be merged into it."""
    merged: bool = False
    """Whether the session was merged into the branch first."""
    conflicts: tuple[ConflictInfo, ...] = ()
    """With any, nothing was merged or pushed."""
    conflicts_count: int = 0


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
