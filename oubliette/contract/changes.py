"""Changes of sessions, as tools return them: diffs, turns, snapshots, merges, pushes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from oubliette.contract.field_types import Result


class FileDiff(Result, frozen=True, kw_only=True):
    """A file that differs; counts are None for binary files, and with `names`."""

    path: str
    """Path in the workspace; bytes that are no UTF-8 are written as `\\xNN`."""
    status: Annotated[str, Meta(description="added, deleted, modified or type_changed.")]
    insertions: int | None
    deletions: int | None
    binary: bool | None


class Diff(Result, frozen=True, kw_only=True):
    """Difference between two snapshots of a workspace; the totals are those of all pages."""

    session_id: str
    from_snapshot: Annotated[str | None, Meta(description="null: what was before the session.")]
    to_snapshot: str | None
    """Name of the newer snapshot; None: the workspace has always been empty."""
    files: int
    insertions: int
    deletions: int
    binary_files: int
    changes: tuple[FileDiff, ...]
    patch: str | None
    """Text as `git diff` has it; None: it was not asked for."""
    left_out_count: Annotated[
        int,
        Meta(
            description="Files that have come or changed, but no snapshot has their content, such"
            " as large ones; on the first page."
        ),
    ]
    left_out: dict[str, str]
    ignored_count: Annotated[
        int,
        Meta(description="Changed files that are not shown, as .gitignore names them; likewise."),
    ]


class DiffPage(Diff, frozen=True, kw_only=True):
    """Result of `session_diff`."""

    next_cursor: str | None


class TurnSnapshotInfo(Result, frozen=True, kw_only=True):
    """A snapshot; equal files are one commit, with the time at which they were first stored."""

    name: str
    """Names it in `diff` and `restore`: `2` is the end of turn 2, `2-start` its beginning."""
    moment: str
    commit: str
    committed_at: float


class TurnLog(Result, frozen=True, kw_only=True):
    """A turn. Sizes are None if no snapshot of its end was taken, or it has not ended."""

    turn: int
    prompt: str | None
    status: str
    """`queued`, `running`, `completed`, `interrupted` or `failed`."""
    created_at: float
    """Seconds since 1970."""
    cost_usd: float | None
    """US dollars; None: the agent has reported none."""
    files: int | None
    """Files that it has changed."""
    insertions: int | None
    deletions: int | None
    snapshots: tuple[TurnSnapshotInfo, ...]


class CommitInfo(Result, frozen=True, kw_only=True):
    """A commit that was made in the workspace."""

    commit: str
    author: Annotated[str, Meta(description="As the agent has written it, like all of this.")]
    email: str
    written_at: float
    subject: str


class CheckpointInfo(Result, frozen=True, kw_only=True):
    """A snapshot that was taken by request."""

    session_id: str
    snapshot: Annotated[str | None, Meta(description="null: the workspace always was empty.")]
    commit: str | None
    changed: Annotated[bool, Meta(description="Whether files differ from the snapshot before.")]
    files: int
    insertions: Annotated[int | None, Meta(description="Lines; null: they take too long to count.")]
    deletions: int | None
    torn: Annotated[bool, Meta(description="Whether files changed all the while.")]


class RestoreInfo(Result, frozen=True, kw_only=True):
    """Outcome of a restore."""

    session_id: str
    restored: str
    """Name of the snapshot whose files are there now."""
    kept_as: Annotated[
        str | None,
        Meta(description="Snapshot with what was there; null: there was nothing."),
    ]
    written: int
    """Files."""
    removed: int
    """Files and folders."""
    missing_count: Annotated[
        int, Meta(description="Files that are not as they were, as no snapshot has their content.")
    ]
    missing: dict[str, str]


class ConflictStageInfo(Result, frozen=True, kw_only=True):
    """A version of a path in a conflict."""

    stage: Annotated[
        str,
        Meta(description="base: both began with it; ours: the branch's; theirs: the session's."),
    ]
    mode: str
    """As git has it: `100644`."""
    oid: str
    """Name of the content."""


class ConflictInfo(Result, frozen=True, kw_only=True):
    """A path that git cannot merge."""

    path: str
    """Path in the repository; bytes that are no UTF-8 are written as `\\xNN`."""
    kind: Annotated[str, Meta(description="As git names it: contents, modify/delete, binary …")]
    message: str
    stages: tuple[ConflictStageInfo, ...]


class MergeInfo(Result, frozen=True, kw_only=True):
    """Outcome of a merge."""

    session_id: str
    into: str
    strategy: str
    snapshot: Annotated[str, Meta(description="Name of the snapshot that was merged.")]
    dry_run: bool
    merged: Annotated[
        bool, Meta(description="Whether the branch has new commits, or would have with dry_run.")
    ]
    up_to_date: Annotated[bool, Meta(description="Whether there was nothing to merge.")]
    created: Annotated[bool, Meta(description="Whether the branch is new in the repository.")]
    fast_forward: Annotated[
        bool, Meta(description="Whether the branch had nothing else, so nothing was combined.")
    ]
    base: Annotated[str, Meta(description="Commit that the workspace was made of.")]
    before: Annotated[str | None, Meta(description="Commit of the branch before; null: none.")]
    commit: Annotated[
        str | None,
        Meta(description="Its commit now; null: it is as it was. With dry_run it is not kept."),
    ]
    commits: int
    files: int
    insertions: Annotated[int | None, Meta(description="Lines; null: they take too long to count.")]
    deletions: int | None
    conflicts: Annotated[
        tuple[ConflictInfo, ...], Meta(description="With any, nothing was merged.")
    ]
    conflicts_count: int
    conflict_with: Annotated[
        str | None,
        Meta(description="Side that does not fit: the session, turn 2, or origin/<branch>."),
    ]
    resolving_session_id: Annotated[
        str | None,
        Meta(description="Session that resolves the conflicts; merge it once its turn has ended."),
    ]
    ignored: Annotated[
        tuple[str, ...], Meta(description="Some new files that .gitignore names: they stay out.")
    ]
    ignored_count: int
    left_out: Annotated[
        dict[str, str],
        Meta(description="Some files whose changes are left out, with the reasons."),
    ]
    left_out_count: int


class PushInfo(Result, frozen=True, kw_only=True):
    """Outcome of a push."""

    session_id: str
    branch: str
    to: str
    repository: Annotated[str, Meta(description="Address of the other repository.")]
    pushed: Annotated[bool, Meta(description="Whether it has new commits there.")]
    up_to_date: Annotated[bool, Meta(description="Whether it had them already.")]
    created: Annotated[bool, Meta(description="Whether the branch is new there.")]
    before: Annotated[str | None, Meta(description="Its commit there before; null: none.")]
    commit: Annotated[str | None, Meta(description="Its commit; null: it could not be merged.")]
    merged: Annotated[bool, Meta(description="Whether the session was merged into it first.")]
    conflicts: Annotated[
        tuple[ConflictInfo, ...], Meta(description="With any, nothing was merged or pushed.")
    ]
    conflicts_count: int
