"""InvariantBroken, the error of every check of this package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN: Final = 400
"""Characters of an event in the message."""


class InvariantBroken(AssertionError):
    """An invariant does not hold; the message has the event.

    Attributes:
        rule: The invariant, as one sentence.
        event: The first event that breaks it; None if something is missing at the end.
        session_id: Session of the event; empty if there is none.
    """

    def __init__(
        self, rule: str, detail: str, event: Mapping[str, Any] | None = None, session_id: str = ""
    ) -> None:
        self.rule = rule
        self.event = None if event is None else dict(event)
        self.session_id: str = session_id or (
            "" if event is None else str(event.get("session_id", ""))
        )
        where = f"{self.session_id}: " if self.session_id else ""
        shown = ""
        if event is not None:
            where += f"event {event.get('index')}: "
            shown = "\n  " + json.dumps(event, default=str)[:SHOWN]
        super().__init__(f"{where}{detail} ({rule}){shown}")
