"""State of a session that is in memory only and outlives its actor's restarts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SessionMemory:
    """What a SessionActor keeps over its own restarts; nobody else reads or writes it.

    It lives in the actor's child spec, so it is lost with the server and with the supervisor.
    """

    api_key: str | None = None
    """For the environment of its agent; never stored."""
    crashes: list[float] = field(default_factory=list[float])
    """Monotonic seconds at which the actor failed lately."""
