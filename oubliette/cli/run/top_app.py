"""Live sessions in the whole terminal: who waits for whom, and the newest line of each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.widgets import DataTable, Footer, Static

from oubliette.cli.terminal.output import SHORT, clean
from oubliette.cli.terminal.transcript import Transcript, cut
from oubliette.cli.terminal.waiting import span, waits_of
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import ComposeResult

    from oubliette import Oubliette

_LINE: Final = 200
"""Characters of the newest line, which gets the room that is left."""
_NAME: Final = 16
_WAIT: Final = 22
_COLUMNS: Final = ("SESSION", "PROJECT", "AGENT", "STATUS", "AGE", "COST", "WAITS FOR", "NEWEST")
_WAIT_SECONDS: Final = 25.0
_REST_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 0.5
"""Time between two listings, however many events there are."""


class TopApp(App[str]):
    """The live sessions; the app ends with the id of the one to attach to, or without any.

    Args:
        ob: Connected as who may see and answer all.
        listed: Parameters of `session_list`, which choose the sessions.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    DataTable { height: 1fr; scrollbar-size-horizontal: 0; }
    #said { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar = [
        Binding("enter", "attach", "Attach", priority=True),
        Binding("y", "answer('allow')", "Allow"),
        Binding("n", "answer('deny')", "Deny"),
        Binding("i", "interrupt", "Interrupt"),
        Binding("q", "quit", "Leave"),
        Binding("ctrl+c", "quit", "Leave", show=False, priority=True),
    ]

    def __init__(self, ob: Oubliette, listed: Mapping[str, Any]) -> None:
        super().__init__()
        self._ob = ob
        self._listed = listed
        self._events = Transcript()
        self._newest: dict[str, str] = {}
        self._projects: dict[str, str] = {}
        self._listing = False
        """Whether a listing will come that shows what has happened until now."""

    def compose(self) -> ComposeResult:
        """Yield the table, a line for errors, and the keys."""
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        """List the sessions, now and after each event."""
        table = self._table
        for name in _COLUMNS:
            table.add_column(name, key=name)
        self.run_worker(self._list(), name="list of sessions")
        self._begin_to_follow()
        self.set_interval(_REST_SECONDS, self._soon)  # ages, and what ended without an event

    @property
    def _table(self) -> DataTable[Text]:
        return cast("DataTable[Text]", self.query_one(DataTable))

    def _begin_to_follow(self) -> None:
        self.run_worker(self._follow(), name="events of all sessions")

    async def _follow(self) -> None:
        after = None
        while True:
            try:
                events, after = await self._ob.read_events(after, wait_seconds=_WAIT_SECONDS)
            except OublietteError as error:  # it has been tried for as long as a restart may take
                self._say(error)
                self.set_timer(_REST_SECONDS, self._begin_to_follow)
                return
            for event in events:
                for passage in self._events.passages(event):
                    last = passage.text.rstrip().rpartition("\n")[2]
                    self._newest[passage.session_id] = last[:_LINE]
            if events:
                self._soon()

    def _soon(self) -> None:
        if not self._listing:
            self._listing = True
            self.set_timer(_AGAIN_SECONDS, self._list)

    async def _list(self) -> None:
        self._listing = False
        try:
            page = await self._ob.call("session_list", **self._listed)
            if {each["project_id"] for each in page["sessions"]} - self._projects.keys():
                self._projects = {each.id: each.name for each in await self._ob.projects()}
        except OublietteError as error:
            self._say(error)
            return
        self._show(page["sessions"])

    def _show(self, sessions: list[dict[str, Any]]) -> None:
        table = self._table
        chosen = self._chosen()
        table.clear()
        shown = {each["session_id"] for each in sessions}
        self._newest = {each: line for each, line in self._newest.items() if each in shown}
        for level, each in below_each_other(sessions):
            table.add_row(*self._cells(level, each), key=each["session_id"])
        if chosen is not None and chosen in table.rows:
            table.move_cursor(row=table.get_row_index(chosen))

    def _cells(self, level: int, session: dict[str, Any]) -> list[Text]:
        session_id = session["session_id"]
        cells = (
            "  " * level + session_id[-SHORT:],
            self._projects.get(session["project_id"], ""),
            session["agent"],
            session["status"],
            span(time.time() - session["created_at"]),
            f"${session['usage']['cost_usd']:.2f}",
            waits_of(session),
            self._newest.get(session_id) or session["title"].partition("\n")[0],
        )
        widths = (_LINE, _NAME, _NAME, _LINE, _LINE, _LINE, _WAIT, _LINE)
        return [Text(cut(clean(cell), most)) for cell, most in zip(cells, widths, strict=True)]

    def _chosen(self) -> str | None:
        table = self._table
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _say(self, error: OublietteError) -> None:
        hint = f" ({error.hint})" if error.hint else ""
        self.query_one("#said", Static).update(Text(clean(f"error: {error.message}{hint}")))

    def action_attach(self) -> None:
        """Leave for the session that is chosen."""
        chosen = self._chosen()
        if chosen is not None:
            self.exit(chosen)

    def action_answer(self, decision: Literal["allow", "deny"]) -> None:
        """Answer the oldest question of the session that is chosen."""
        self.run_worker(self._answer(decision), name="answer to a session")

    async def _answer(self, decision: Literal["allow", "deny"]) -> None:
        chosen = self._chosen()
        try:
            asked = [each for each in await self._ob.permissions() if each.session_id == chosen]
            for request in asked[:1]:
                await self._ob.answer_permission(request, decision)
        except OublietteError as error:
            self._say(error)

    def action_interrupt(self) -> None:
        """Interrupt the turn of the session that is chosen."""
        self.run_worker(self._interrupt(), name="interrupt of a turn")

    async def _interrupt(self) -> None:
        chosen = self._chosen()
        try:
            if chosen is not None:
                await self._ob.call("session_interrupt", session_id=chosen)
        except OublietteError as error:
            self._say(error)


def below_each_other(sessions: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return each session with its level, children after their parent; others are at the top."""
    known = {each["session_id"] for each in sessions}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for each in sessions:
        parent = each["parent_session_id"]
        children.setdefault(parent if parent in known else None, []).append(each)
    found: list[tuple[int, dict[str, Any]]] = []
    waiting = [(0, each) for each in reversed(children.get(None, []))]
    while waiting:
        level, each = waiting.pop()
        found.append((level, each))
        below = children.get(each["session_id"], [])
        waiting += [(level + 1, child) for child in reversed(below)]
    return found
