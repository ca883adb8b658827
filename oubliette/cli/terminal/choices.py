"""Choices of options that servers check, as usage lines and completion show them."""

from __future__ import annotations

from typing import Final

AGENT: Final = "opencode|opencode-acp|droid|acp|scripted"
"""Agents of this release; packages and configurations add others."""
SCRIPTED: Final = "scripted"
"""Agent that works without a model, and understands no task."""
SCRIPTED_DOES: Final = (
    "The scripted one repeats what it does not understand; oubliette doctor shows which others"
    " there are, and what they need."
)
AUTONOMY: Final = "off|low|medium|high|ask"
LEVEL: Final = "debug|info|warning|error"
RUNTIME: Final = "auto|process|docker|podman|apple"
SCOPE: Final = "admin|write|read|project:ID|project:ID:ro"
LIVE: Final = ("created", "running", "idle")
"""Statuses of sessions that have not finished."""
AT_REST: Final = ("completed", "failed", "timed_out")
ANSWERS: Final = {"y": ("allow", "once"), "s": ("allow", "session"), "n": ("deny", "once")}
"""Decision about a request for permission, and how long it holds, by what a person types."""
STATUS: Final = "|".join((*LIVE, *AT_REST))
