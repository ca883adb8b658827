"""Views of merges, as tools answer with them: the outcome, and what conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.records import made_of
from oubliette.tools.schema import response_size
from oubliette.tools.spec import Result

if TYPE_CHECKING:
    from oubliette.runtime.repositories.merging.merge_records import MergeOutcome
    from oubliette.runtime.repositories.merging.tree_merge import PathConflict

MAX_CONFLICTS: Final = 500
"""Maximum of conflicts in an answer."""


class ConflictSide(Result, frozen=True, kw_only=True):
    """A version of a path in a conflict."""

    stage: Annotated[
        str,
        Meta(description="base: both began with it; ours: the branch's; theirs: the session's."),
    ]
    mode: str
    oid: str


class ConflictView(Result, frozen=True, kw_only=True):
    """A path that git cannot merge."""

    path: str
    kind: Annotated[str, Meta(description="As git names it: contents, modify/delete, binary …")]
    message: str
    stages: tuple[ConflictSide, ...]


class MergeView(Result, frozen=True, kw_only=True):
    """Result of `session_merge`."""

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
    insertions: int
    deletions: int
    conflicts: Annotated[
        tuple[ConflictView, ...], Meta(description="With any, nothing was merged.")
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
        Meta(description="Some files whose changes no snapshot has, with the reasons."),
    ]
    left_out_count: int


def merge_view(
    outcome: MergeOutcome,
    *,
    session_id: str,
    strategy: str,
    snapshot: str,
    dry_run: bool,
    resolving: str | None,
) -> MergeView:
    """Return the view of a merge."""
    return made_of(
        outcome,
        MergeView,
        session_id=session_id,
        strategy=strategy,
        snapshot=snapshot,
        dry_run=dry_run,
        conflicts=conflict_views(outcome.conflicts),
        conflicts_count=len(outcome.conflicts),
        resolving_session_id=resolving,
    )


def conflict_views(conflicts: tuple[PathConflict, ...]) -> tuple[ConflictView, ...]:
    """Return the views of conflicts, as many as an answer may have."""
    views, _, _ = response_size.fitting(
        (_conflict(each) for each in conflicts[:MAX_CONFLICTS]), response_size.MAX_PARTS // 2
    )
    return tuple(views)


def _conflict(conflict: PathConflict) -> ConflictView:
    return ConflictView(
        path=conflict.path,
        kind=conflict.kind,
        message=conflict.message,
        stages=tuple(
            ConflictSide(stage=each.stage, mode=each.mode, oid=each.oid) for each in conflict.stages
        ),
    )
