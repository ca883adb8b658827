"""State of a session that is in memory only and outlives its actor's restarts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SessionMemory:
    """State that a SessionActor keeps over its own restarts, and that no other actor uses.

    It is part of the actor's child spec, so it is lost with the server and with the supervisor.
    """

    api_key: str | None = None
    """Key for the environment of its agent; never stored."""
    crashes: list[float] = field(default_factory=list[float])
    """Monotonic seconds of the actor's latest failures."""
