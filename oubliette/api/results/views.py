"""Records of sessions and projects, as programs get them."""

from __future__ import annotations

from typing import Any

from oubliette.api.events.usage import Usage
from oubliette.contract.project import ProjectView
from oubliette.contract.session import SessionView, WaitInfo


class ProjectInfo(ProjectView, frozen=True, kw_only=True):
    """A project: its settings."""

    limits: dict[str, Any]  # pyright: ignore[reportIncompatibleVariableOverride]
    """Limits of each tree of sessions, by name; None: the configured ones."""


class SessionInfo(SessionView, frozen=True, kw_only=True):
    """State of a session at one moment."""

    usage: Usage  # pyright: ignore[reportIncompatibleVariableOverride]
    """Usage of all its turns."""
    waiting: tuple[WaitInfo, ...] = ()
    """Its waits now; in lists only if they were asked for."""
    problem: str | None = None
    """Reason why its workspace cannot be used; None: none is known."""
