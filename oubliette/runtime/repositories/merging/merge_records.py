"""Values of merges: what is asked for, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.contract.changes import ConflictInfo
from oubliette.runtime.snapshots.history_records import StatesAnswer

Strategy = Literal["merge", "squash", "rebase"]
"""A merge of commits; one commit; one commit per turn on top of the branch."""


class MergeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to merge: states of a session's workspace, and the branch that is to have them."""

    session_id: str
    workspace_id: str
    into: str
    """Name of the branch."""
    states: StatesAnswer
    """States of the workspace up to the snapshot that is merged."""
    strategy: Strategy = "merge"
    message: str | None = None
    """Message of the merge or of the one commit; None: one is made."""
    subjects: tuple[tuple[str, int, str], ...] = ()
    """First lines of the commits of turns: session, turn, text."""
    agent_head: str | None = None
    """Commit that is HEAD in the workspace, whose commits are merged; None: a commit per turn."""
    dry_run: bool = False
    resolve_in: str | None = None
    """Id of a workspace that is to be made for an agent if something conflicts; None: none is."""


class MergeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a merge."""

    into: str
    merged: bool
    """Whether the branch has what was asked for; with `dry_run`, whether it would."""
    up_to_date: bool = False
    """Whether it had that before, so that nothing was done."""
    created: bool = False
    """Whether the branch did not exist in the project's repository."""
    fast_forward: bool = False
    """Whether no merge was needed, as nothing else had come to the branch."""
    base: str
    """Commit that the workspace was made of."""
    before: str | None = None
    """Commit of the branch before; None: it did not exist."""
    commit: str | None = None
    """Commit of the branch now; None: nothing was merged."""
    commits: int = 0
    """Commits that came to the branch."""
    files: int = 0
    insertions: int | None = 0
    deletions: int | None = 0
    """Lines; None: it takes too long to count them."""
    conflicts: tuple[ConflictInfo, ...] = ()
    conflict_with: str | None = None
    """Side that does not fit: `the session`, `turn 2`, or `origin/main`."""
    resolve_from: str | None = None
    """Commit of the branch, of which a workspace is to be made for an agent; None: none is."""
    resolve_commit: str | None = None
    """Commit with the conflicts, which are uncommitted changes there."""
    ignored: tuple[str, ...] = ()
    """Some of the files that are left out because `.gitignore` names them."""
    ignored_count: int = 0
    left_out: dict[str, str] = {}
    """Some of the other files that are left out, with the reasons."""
    left_out_count: int = 0
