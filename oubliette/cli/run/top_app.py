"""Live trees in the whole terminal: what they wait for and cost, and the newest line of each."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, ClassVar, Final, Literal, cast

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.widgets import DataTable, Footer, Static

from oubliette.cli.terminal.choices import LIVE
from oubliette.cli.terminal.output import SHORT, clean
from oubliette.cli.terminal.transcript import cut
from oubliette.cli.terminal.waiting import span
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from textual.app import ComposeResult

    from oubliette import Oubliette
    from oubliette.contract.overview import TreeInfo, TreeRow

EXPANDED: Final = 20
"""Trees, the newest ones, below whose root the other live sessions have rows of their own."""
_LINE: Final = 200
"""Characters of the newest line, which gets the room that is left."""
_NAME: Final = 16
_WAIT: Final = 22
_COLUMNS: Final = ("SESSION", "PROJECT", "AGENT", "STATE", "AGE", "COST", "WAITS FOR", "NEWEST")
_WIDTHS: Final = (_LINE, _NAME, _NAME, _LINE, _LINE, _LINE, _WAIT, _LINE)
_WAIT_SECONDS: Final = 25.0
_REST_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 0.5
"""Time between two listings, however many events there are."""


class TopApp(App[str]):
    """The live trees; the app ends with the id of the session to attach to, or without any.

    Args:
        ob: Connected as who may see and answer all.
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

    def __init__(self, ob: Oubliette) -> None:
        super().__init__()
        self._ob = ob
        self._projects: dict[str, str] = {}
        self._listing = False
        """Whether a listing will come that shows what has happened until now."""

    def compose(self) -> ComposeResult:
        """Yield the table, a line for errors, and the keys."""
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        """List the trees, now and after each event."""
        table = self._table
        for name in _COLUMNS:
            table.add_column(name, key=name)
        self.run_worker(self._list(), name="list of trees")
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
            if events:
                self._soon()

    def _soon(self) -> None:
        if not self._listing:
            self._listing = True
            self.set_timer(_AGAIN_SECONDS, self._list)

    async def _list(self) -> None:
        self._listing = False
        try:
            trees = await self._ob.trees()
            several = [each for each in trees if each.live > 1][:EXPANDED]
            states = await asyncio.gather(
                *(self._ob.tree_state(each.session_id) for each in several)
            )
            if {each.project_id for each in trees} - self._projects.keys():
                self._projects = {each.id: each.name for each in await self._ob.projects()}
        except OublietteError as error:
            self._say(error)
            return
        self._show(trees, {each.exploration_id: each.rows for each in states})

    def _show(self, trees: Sequence[TreeInfo], rows: dict[str, Sequence[TreeRow]]) -> None:
        table = self._table
        chosen = self._chosen()
        table.clear()
        for tree in trees:
            self._add(tree.session_id, self._cells_of_tree(tree))
            for row in rows.get(tree.exploration_id, ()):
                if row.session_id != tree.session_id and row.status in LIVE:
                    self._add(row.session_id, self._cells_of_row(row))
        if chosen is not None and chosen in table.rows:
            table.move_cursor(row=table.get_row_index(chosen))

    def _add(self, session_id: str, cells: Iterator[str]) -> None:
        texts = [Text(cut(clean(cell), most)) for cell, most in zip(cells, _WIDTHS, strict=True)]
        self._table.add_row(*texts, key=session_id)

    def _cells_of_tree(self, tree: TreeInfo) -> Iterator[str]:
        yield tree.session_id[-SHORT:]
        yield self._projects.get(tree.project_id, "")
        yield tree.agent
        yield "live" if tree.sessions == 1 else f"{tree.live} of {tree.sessions}"
        yield span(time.time() - tree.created_at)
        limit = "" if tree.max_cost_usd is None else f" of ${tree.max_cost_usd:.2f}"
        yield f"${tree.cost_usd:.2f}{limit}"
        yield _waits(each.what for each in tree.waiting)
        yield tree.newest or tree.title

    def _cells_of_row(self, row: TreeRow) -> Iterator[str]:
        yield "  " * max(1, row.level) + row.session_id[-SHORT:]
        yield self._projects.get(row.project_id, "")
        yield row.agent
        yield row.status
        yield span(time.time() - row.created_at)
        yield f"${row.cost_usd:.2f}"
        yield _waits(each.what for each in row.waiting if each.kind not in {"child", "ended"})
        yield row.title

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


def _waits(what: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(what))
