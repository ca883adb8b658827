"""Messages to a ProjectActor about branches of its repository."""

from __future__ import annotations

import msgspec

from oubliette.contract.changes import CommitInfo
from oubliette.kit import Message, Reply
from oubliette.runtime.repositories.branch_push import PushOutcome
from oubliette.runtime.repositories.merging.merge_records import MergeOutcome, MergeRequest


class MergeSession(Message, Reply[MergeOutcome]):
    """To a ProjectActor: merge what a session has changed into a branch of its repository."""

    request: MergeRequest


class AgentCommitsFetched(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to FetchAgentCommits: both are in the project's repository."""

    base: str
    """Commit that the workspace was made of."""
    head: str
    """Commit that is HEAD in the workspace."""
    commits: tuple[CommitInfo, ...] = ()
    """Some of those between the two, newest first."""


class FetchAgentCommits(Message, Reply[AgentCommitsFetched]):
    """To a ProjectActor: fetch what an agent has committed in the repository of its workspace.

    The asker holds a lease of the container.
    """

    workspace_id: str
    workspace: str
    """As documented, absolute."""
    first_tree: str
    """Tree of the first snapshot, by which the commit of the workspace may be found."""


class DropUnused(Message, Reply[None]):
    """To a ProjectActor: remove the folder of a workspace that was made for a refused session."""

    workspace_id: str


class LastState(msgspec.Struct, frozen=True, kw_only=True):
    """The tree of a workspace at its end, and what its repository names."""

    tree: str
    named: tuple[str, ...]
    """Objects that its own repository names."""


class FindKept(Message, Reply[tuple[str, ...]]):
    """To a ProjectActor: which of these workspaces have nothing that its source does not have.

    That is as of the last fetch and the last push.
    """

    workspaces: dict[str, LastState]


class PushBranch(Message, Reply[PushOutcome]):
    """To a ProjectActor: push a branch of its repository to where that was cloned from.

    Refused with `Forbidden` where the project does not consent.
    """

    branch: str
    to: str
    """Its name on the other side."""
    progress_to: str | None = None
    """Name of an actor that gets `CloneProgressed`."""
