"""State of a session that is in memory only and outlives its actor's restarts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

CRASH_WINDOW: Final = 60.0  # seconds; more than CRASHES failures in it end the session
CRASHES: Final = 3


@dataclass(slots=True)
class SessionMemory:
    """State that a SessionActor keeps over its own restarts, and that no other actor uses.

    It is part of the actor's child spec, so it is lost with the server and with the supervisor.
    """

    api_key: str | None = None
    """Key for the environment of its agent; never stored."""
    paced: bool = False
    """Whether a server that has started brings it back, among others: its agent starts in turn."""
    crashes: list[float] = field(default_factory=list[float])
    """Monotonic seconds of the actor's latest failures."""

    def note_crash(self, now: float) -> None:
        """Record a failure at a monotonic second."""
        self.crashes.append(now)

    def crashed_too_often(self, now: float) -> bool:
        """Return whether the actor has failed more than `CRASHES` times in `CRASH_WINDOW`."""
        self.crashes[:] = [at for at in self.crashes if now - at < CRASH_WINDOW]
        return len(self.crashes) > CRASHES
