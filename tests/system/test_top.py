"""All live trees in the whole terminal: they are seen there, answered, interrupted, opened."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from textual.widgets import DataTable

import oubliette
from oubliette.cli.run.top_app import TopApp
from oubliette.contract.overview import TreeInfo, TreeRow, TreeState, TreeWait
from oubliette.errors import Unavailable
from tests.system.site import TURN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.pilot import Pilot

    from tests.system.site import Site

pytestmark = pytest.mark.anyio


class Person:
    """Who looks at the table."""

    def __init__(self, app: TopApp, pilot: Pilot[str]) -> None:
        self.press = pilot.press
        self.table = app.query_one(DataTable)
        self._changed = asyncio.Event()
        app.watch(self.table, "virtual_size", self._changed.set)

    async def chooses(self, session_id: str) -> list[str]:
        """Wait for the row of a session, and go there; what it has in its cells."""
        async with asyncio.timeout(TURN):
            while session_id not in self.table.rows:
                self._changed.clear()
                await self._changed.wait()
        self.table.move_cursor(row=self.table.get_row_index(session_id))
        return [str(cell) for cell in self.table.get_row(session_id)]


@contextlib.asynccontextmanager
async def watched(site: Site) -> AsyncIterator[tuple[oubliette.Oubliette, TopApp, Person]]:
    key = site.server.token("admin", principal="operator")
    async with oubliette.connect(site.server.url, key) as ob:
        app = TopApp(ob)
        async with app.run_test(size=(100, 30)) as pilot:
            yield ob, app, Person(app, pilot)


class Gone:
    """A server that is away."""

    async def call(self, *_: object, **__: object) -> None:
        raise Unavailable("no server is there", hint="start it")

    read_events = permissions = trees = call


class Canned:
    """A server with a tree of three sessions, of which one has ended, and one that is alone."""

    def __init__(self) -> None:
        parts = {"project_id": "p", "agent": "scripted", "created_at": 0.0}
        wait = TreeWait(session_id="child1", kind="permission", what="a decision", until=None)
        tree = {**parts, "newest_at": None, "max_cost_usd": None, "waiting": ()}
        self._trees = [
            TreeInfo(**{**tree, "waiting": (wait,), "max_cost_usd": 2.0}, exploration_id="1",
                     session_id="root01", title="Fix", sessions=3, live=2, cost_usd=0.5,
                     newest="I look"),
            TreeInfo(**tree, exploration_id="2", session_id="root02", title="Sell", sessions=1,
                     live=1, cost_usd=0.0, newest=None),
        ]  # fmt: skip
        row = {**parts, "model": None, "updated_at": 0.0, "cost_usd": 0.1, "waiting": ()}
        self._rows = [
            TreeRow(**row, session_id=name, parent_session_id=None, level=level, status=status,
                    title="Part")
            for name, level, status in (("root01", 0, "running"), ("child1", 1, "idle"),
                                        ("child2", 1, "completed"))
        ]  # fmt: skip

    async def trees(self) -> list[TreeInfo]:
        return self._trees

    async def tree_state(self, session_id: str) -> TreeState:
        assert session_id == "root01"
        return TreeState(exploration_id="1", sessions=3, live=2, cost_usd=0.5, limits={},
                         rows=tuple(self._rows), next_cursor=None)  # fmt: skip

    async def projects(self) -> list[object]:
        return []

    async def read_events(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()


async def until(session: oubliette.Session, kind: str) -> oubliette.Event:
    async with asyncio.timeout(TURN):
        async for event in session.events(follow=True):
            if event.type == kind:
                return event
    raise AssertionError(f"no {kind}")


async def test_a_session_is_answered_interrupted_and_opened(site):
    async with watched(site) as (ob, app, person):
        project = await ob.create_project("top")
        asks = await project.spawn("ask sell the shop\nsleep 600", autonomy="ask")
        await until(asks, "permission_request")
        row = await person.chooses(asks.id)
        assert row[:4] == [asks.id[-6:], "top", "scripted", "live"]
        await person.press("y")
        settled = await until(asks, "permission_settled")
        assert (settled.decision, settled.by) == ("allow", "operator")
        await person.chooses(asks.id)
        await person.press("i")
        assert (await until(asks, "completion")).status == "interrupted"
        await person.chooses(asks.id)
        await person.press("enter")
        assert app.return_value == asks.id


@pytest.mark.whole
async def test_children_stand_below_their_parents_and_q_leaves(site):
    async with watched(site) as (ob, app, person):
        project = await ob.create_project("top of a tree")
        message = json.dumps({"message": "say [bold]small\nsleep 600"})
        parent = await project.spawn(f"call session_message {message}")
        child, after = parent.id, -1
        async with asyncio.timeout(TURN):
            while child == parent.id:
                events, after = await ob.read_events(
                    after, project_id=project.id, types=["status"], wait_seconds=TURN
                )
                child = events[-1].session_id
        row = await person.chooses(child)
        assert row[0] == f"  {child[-6:]}"
        assert row[3] == "running"
        assert str(person.table.get_row(parent.id)[3]) == "2 of 2"
        rows = [key.value for key in person.table.rows]
        assert rows.index(child) == rows.index(parent.id) + 1
        await person.press("n", "q")
        assert app.return_value is None


async def test_trees_have_their_cost_and_limit_and_live_children_their_rows():
    app = TopApp(Canned())
    async with app.run_test(size=(120, 30)) as pilot:
        person = Person(app, pilot)
        await person.chooses("root02")
        table = [[str(cell) for cell in person.table.get_row(each)] for each in person.table.rows]
    assert [[*row[:1], *row[3:4], *row[5:]] for row in table] == [
        ["root01", "2 of 3", "$0.50 of $2.00", "a decision", "I look"],
        ["  child1", "idle", "$0.10", "", "Part"],
        ["root02", "live", "$0.00", "", "Sell"],
    ]


async def test_a_server_that_is_away_is_named_and_no_traceback():
    app = TopApp(Gone())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert str(app.query_one("#said").render()) == "error: no server is there (start it)"
        await pilot.press("y", "i", "q")
    assert app.return_code == 0
