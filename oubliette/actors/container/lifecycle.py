"""States of a container, as its actor sees them, and the transitions between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["down", "adopting", "starting", "relay", "up", "stopping"]
"""`down`: there is no container. `adopting`: the engine does not report which ones there are.
`starting`: the engine makes one. `relay`: it runs, and its guest has not proved its identity
yet. `up`: agents can be started in it. `stopping`: the engine ends it.
"""

Occurrence = Literal[
    "engine_away",
    "examined",
    "adopted",
    "wanted",
    "started",
    "start_failed",
    "relayed",
    "lost",
    "stop",
    "stopped",
    "stop_failed",
]
"""`engine_away`: it could not be asked which containers there are. `examined`: it answered, and
none can be used. `adopted`: one of them is used. `wanted`: a session or command needs one.
`lost`: it ended, or cannot be used any more. The others are the ends of the activities that name
the states.
"""

TRANSITIONS: Final[Mapping[tuple[State, Occurrence], State]] = {
    ("down", "engine_away"): "adopting",
    ("down", "examined"): "down",
    ("down", "adopted"): "up",
    ("adopting", "engine_away"): "adopting",
    ("adopting", "examined"): "down",
    ("adopting", "adopted"): "up",
    ("down", "wanted"): "starting",
    ("starting", "started"): "relay",
    ("starting", "start_failed"): "down",
    ("relay", "relayed"): "up",
    ("relay", "lost"): "down",
    ("relay", "stop"): "stopping",
    ("up", "lost"): "down",
    ("up", "stop"): "stopping",
    ("stopping", "lost"): "stopping",
    ("stopping", "relayed"): "stopping",
    ("stopping", "stopped"): "down",
    ("stopping", "stop_failed"): "up",
}


class UnexpectedOccurrenceError(Exception):
    """Error for an occurrence that cannot happen in this state: a defect of the actor."""


class Lifecycle:
    """State of one container; changed by `on` alone."""

    def __init__(self) -> None:
        self.state: State = "down"

    def on(self, occurrence: Occurrence) -> State:
        """Change the state according to an occurrence, and return the new one.

        Raises:
            UnexpectedOccurrenceError: the table has no such transition.
        """
        found = TRANSITIONS.get((self.state, occurrence))
        if found is None:
            raise UnexpectedOccurrenceError(f"{occurrence} in the state {self.state}")
        self.state = found
        return found

    @property
    def runs(self) -> bool:
        """Whether the container runs, as far as is known, and is not about to be ended."""
        return self.state in {"relay", "up"}
