"""Memory of a caller over restarts of its actor: tools, open requests, what was delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oubliette.records import CallerTool


@dataclass
class TrackedRequest:
    """An open request that depends on the presence of its caller."""

    reply_to: str
    """Name of the actor that gets `CallerDisconnected` when the caller is absent."""
    durable: bool
    """Whether it waits for an absent caller until its own deadline."""
    not_before: float
    """Monotonic second before which an absent caller is waited for."""


@dataclass
class CallerMemory:
    """State that a CallerActor keeps over its own restarts; in memory, owned by that actor."""

    tools: tuple[CallerTool, ...] | None = None
    project_tools: dict[str, tuple[CallerTool, ...]] = field(
        default_factory=dict[str, "tuple[CallerTool, ...]"]
    )
    """Project → tools that came with a key which is restricted to it."""
    tracked: dict[str, TrackedRequest] = field(default_factory=dict[str, TrackedRequest])
    delivered: int = 0
    """Seq up to which a provider received events."""

    def provided(self, project_id: str | None) -> tuple[CallerTool, ...] | None:
        """Return the tools that came with keys which are restricted to a project, or to none."""
        return self.tools if project_id is None else self.project_tools.get(project_id)

    def provide(self, project_id: str | None, tools: tuple[CallerTool, ...]) -> None:
        """Replace the tools that came with keys which are restricted to a project, or to none."""
        if project_id is None:
            self.tools = tools
        else:
            self.project_tools[project_id] = tools

    def tools_for(
        self, project_id: str | None, *, restricted: bool
    ) -> tuple[CallerTool, ...] | None:
        """Return the tools for sessions of a project; None if none were provided.

        Those that came with a key which is restricted to it count first for such keys alone.
        """
        own = None if project_id is None else self.project_tools.get(project_id)
        first, second = (own, self.tools) if restricted else (self.tools, own)
        return second if first is None else first

    def lost(self, now: float) -> dict[str, TrackedRequest]:
        """The requests that wait no longer at `now` for a caller that is absent."""
        return {
            request_id: tracked
            for request_id, tracked in self.tracked.items()
            if not tracked.durable and tracked.not_before <= now
        }

    def next_loss(self, absent: float) -> float | None:
        """The time of the next loss if the caller is absent from `absent` on.

        None if no request would be lost, however long it stays away.
        """
        waiting = [one.not_before for one in self.tracked.values() if not one.durable]
        return max(absent, min(waiting)) if waiting else None
