"""State of the session that decisions on a request of its agent depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from oubliette.records import Session


class RequestInput(NamedTuple):
    """State at the moment at which a request of the agent's client is decided on."""

    record: Session
    now: float
    """Wall second."""
    stopping: bool
    """Whether the session accepts nothing new."""
