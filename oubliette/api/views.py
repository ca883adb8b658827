"""Records of sessions and projects, as programs get them."""

from __future__ import annotations

from typing import Any

import msgspec

from oubliette.api.events.usage import Usage
from oubliette.api.repositories import RepositoryInfo


class ProjectContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container of a project."""

    container_id: str
    workspace_id: str | None = None
    """Workspace that it serves alone; None: all of the project's."""
    state: str = ""


class ProjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A project: its settings."""

    id: str
    name: str
    description: str = ""
    created_at: float = 0.0
    """Seconds since 1970."""
    default_workspace_id: str = ""
    container_type: str | None = None
    agent: str | None = None
    model: str | None = None
    autonomy: str | None = None
    workspace_isolation: bool = False
    limits: dict[str, Any] = {}
    """Limits of each tree of sessions, by name; None: the configured ones."""
    accept_bare: bool | None = None
    """Whether clients without a secret are accepted in its containers; None: as configured."""
    remote_url: str | None = None
    containers: tuple[ProjectContainer, ...] = ()
    repository: RepositoryInfo | None = None
    """Repository that it was cloned from; None: it began empty."""
    problem: str | None = None
    """Reason why its folders cannot be used; None: none is known."""


class WaitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a session waits for; see docs/tools.md."""

    kind: str
    what: str
    """Completes the sentence: it waits for …"""
    since: float | None = None
    """Seconds since 1970; None: unknown."""
    until: float | None = None
    """Its deadline, in seconds since 1970; None: it has none."""
    detail: str | None = None
    session_id: str | None = None
    """Child that it waits for."""
    caller_id: str | None = None
    """Caller that has to answer."""
    caller_present: bool | None = None
    """Whether that caller is connected."""
    last_event_at: float | None = None
    """Time of the agent's last output, in seconds since 1970."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """State of a session at one moment."""

    session_id: str
    project_id: str
    workspace_id: str
    agent: str
    model: str | None = None
    status: str
    """`created`, `running`, `idle`, `completed`, `failed` or `timed_out`."""
    status_reason: str | None = None
    isolation: str = ""
    created_at: float = 0.0
    """Seconds since 1970."""
    updated_at: float = 0.0
    ended_at: float | None = None
    turn_count: int = 0
    last_prompt: str | None = None
    final_response: str | None = None
    last_index: int = -1
    """Index of its last event; -1 if there is none."""
    parent_session_id: str | None = None
    child_session_ids: tuple[str, ...] = ()
    exploration_id: str = ""
    depth: int = 0
    caller_id: str | None = None
    usage: Usage = Usage()
    """Usage of all its turns."""
    forked_from: str | None = None
    """Session that it is a fork of; None: of none."""
    forked_at: str | None = None
    """Snapshot of that session with whose files it began."""
    forked_at_turn: int | None = None
    """Last turn of that session whose conversation it knows."""
    conversation: str | None = None
    """Of a fork, `native`: its agent itself knows it; `transcript`: it got a record of it."""
    waiting: tuple[WaitInfo, ...] = ()
    """Its waits now; empty in lists."""
    problem: str | None = None
    """Reason why its workspace cannot be used; None: none is known."""
