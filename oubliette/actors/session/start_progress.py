"""Progress of the start of a session's container and agent, as an event, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.session.effects import AppendEvent

if TYPE_CHECKING:
    from oubliette.actors.container.messages import StageChanged
    from oubliette.actors.session.messages import AgentStartProgress


def stage_event(stage: str, message: AgentStartProgress | StageChanged) -> AppendEvent:
    """Return the event of a stage of the start; empty fields are left out."""
    payload = {
        name: value
        for name in ("container_id", "detail", "error", "remedy", "warnings")
        if (value := getattr(message, name, None))
    }
    shown = {
        "kind": "stage",
        "stage": stage,
        "state": message.state,
        "elapsed_ms": message.elapsed_ms,
        **payload,
    }
    return AppendEvent("system", shown)
