"""Views of merges, as tools answer with them: the outcome, and what conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.contract.changes import ConflictInfo, MergeInfo
from oubliette.records import made_of
from oubliette.tools.schema import response_size

if TYPE_CHECKING:
    from oubliette.runtime.repositories.merging.merge_records import MergeOutcome

MAX_CONFLICTS: Final = 500
"""Maximum of conflicts in an answer."""


def merge_view(
    outcome: MergeOutcome,
    *,
    session_id: str,
    strategy: str,
    snapshot: str,
    dry_run: bool,
    resolving: str | None,
) -> MergeInfo:
    return made_of(
        outcome,
        MergeInfo,
        session_id=session_id,
        strategy=strategy,
        snapshot=snapshot,
        dry_run=dry_run,
        conflicts=conflict_views(outcome.conflicts),
        conflicts_count=len(outcome.conflicts),
        resolving_session_id=resolving,
    )


def conflict_views(conflicts: tuple[ConflictInfo, ...]) -> tuple[ConflictInfo, ...]:
    """The first conflicts, as many as an answer may have."""
    views, _, _ = response_size.fitting(conflicts[:MAX_CONFLICTS], response_size.MAX_PARTS // 2)
    return tuple(views)
