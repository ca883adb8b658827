"""EventPrinter, which prints the events of the agent and of its children as they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette import Completion, Event, Status
from oubliette.api.events import decode_event
from oubliette.cli.demo.lines import described
from oubliette.cli.demo.shop import CALLER

if TYPE_CHECKING:
    from oubliette import Oubliette
    from oubliette.cli.demo.lines import DemoOutput


class EventPrinter:
    """Observer of the sessions that the demo's caller has started, and of their descendants."""

    def __init__(self, lines: DemoOutput) -> None:
        self._lines = lines
        self._ids: list[str] = []
        """Ids of the sessions as they appeared: the agent's, then its children's."""
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    async def begin(self, ob: Oubliette) -> int:
        """The cursor of the present, for `follow`."""
        page = await self._page(ob, None, 0.0)
        return page["next"]

    async def follow(self, ob: Oubliette, cursor: int) -> None:
        """Print the events after a cursor, until the agent's turn ends."""
        while not self._ids or self._ids[0] not in self._ended:
            page = await self._page(ob, cursor, None)
            cursor = page["next"]
            for event in page["events"]:
                self._show(decode_event(event))

    async def _page(self, ob: Oubliette, after: int | None, seconds: float | None) -> Any:
        # An observer beside the caller, which goes on where it was when the server is back.
        return await ob.call(
            "caller_listen", caller_id=CALLER, observe=True, after=after, max_seconds=seconds
        )

    def _show(self, event: Event) -> None:
        if event.session_id not in self._ids:
            self._ids.append(event.session_id)
        match event:
            case Status(status="running"):
                self._began.setdefault(event.session_id, event.ts)
            case Completion():
                self._ended[event.session_id] = event.ts
            case _:
                pass
        if text := described(event):
            child = self._ids.index(event.session_id)
            self._lines.say(f"child {child}" if child else "agent", text)

    @property
    def answered(self) -> int:
        """Number of children whose turns have ended."""
        return sum(child in self._ended for child in self._ids[1:])

    def children(self) -> str:
        """Return how many children there were, and whether all worked at one moment."""
        children = self._ids[1:]
        began = [self._began.get(child, 0.0) for child in children]
        ended = [self._ended.get(child, 0.0) for child in children]
        together = bool(children) and max(began) < min(ended)
        return f"{len(children)}{', at the same time' if together else ''}"
