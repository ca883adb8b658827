"""Projects of the sessions in a caller's events, for listeners bound to one project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.actors.caller.reader import CallerReader
    from oubliette.records import Event

MAX_KNOWN: Final = 10_000
"""Sessions of one caller that are remembered; far more than one batch of events names."""


class KnownProjects(dict[str, str]):
    """Session id → project id, as far as it was read; "" for a session that is gone."""

    async def read(self, reader: CallerReader, events: Iterable[Event]) -> dict[str, str]:
        """Return the project of each session that is not known yet; `learn` remembers them."""
        found: dict[str, str] = {}
        for session_id in {event.session_id for event in events} - self.keys():
            record = await reader.session(session_id)
            found[session_id] = "" if record is None else record.project_id
        return found

    def learn(self, found: dict[str, str]) -> None:
        """Remember these; if there are too many, the earlier ones have to be read again."""
        if len(self) + len(found) > MAX_KNOWN:
            self.clear()
        self.update(found)
