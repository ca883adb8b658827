"""Choices of options that servers check, as usage lines and completion show them."""

from __future__ import annotations

from typing import Final

AGENT: Final = "opencode|opencode-acp|droid|acp|scripted"
"""Agents of this release; packages and configurations add others."""
AUTONOMY: Final = "off|low|medium|high|ask"
LEVEL: Final = "debug|info|warning|error"
RUNTIME: Final = "auto|process|docker|podman|apple"
SCOPE: Final = "admin|write|read|project:ID|project:ID:ro"
STATUS: Final = "created|running|idle|completed|failed|timed_out"
