"""Portions of an agent's output, cut for its session and acknowledged to the guest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.actors.session.messages import OutputEvent
    from oubliette.runtime.agents.base import AgentEvent

PORTION: Final = 200  # items delivered at once
MAX_REPLAY: Final = 16 << 20  # bytes of one turn that are kept to be read again


def ack_of(event: AgentEvent) -> int:
    """Return the offset up to which output may be discarded; a full spool would block the agent."""
    lag = event.end_offset - event.ack_offset
    return event.ack_offset if lag <= MAX_REPLAY else event.end_offset


def portions(items: list[OutputEvent]) -> list[tuple[OutputEvent, ...]]:
    """Cut between lines only: the events of one line are committed together."""
    cut: list[list[OutputEvent]] = []
    for item in items:
        full = cut and len(cut[-1]) >= PORTION
        if not cut or (full and cut[-1][-1].offset != item.offset):
            cut.append([])
        cut[-1].append(item)
    return [tuple(portion) for portion in cut]
