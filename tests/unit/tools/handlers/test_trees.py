"""`tree_get`: who works below whom, and what of it a key sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.session.waits import SessionWaits, Wait

if TYPE_CHECKING:
    from oubliette.records import Session
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tree(bench: Bench) -> dict[str, Session]:
    """A root with two children, of which the first has a child in another project."""
    shop, blog = await bench.project("shop"), await bench.project("blog")
    root = await bench.session(shop, live=True, title="root", cost_usd=0.5)
    first = await bench.session(shop, parent=root, live=True, title="first", cost_usd=0.25)
    second = await bench.session(shop, parent=root, title="second")
    below = await bench.session(blog, parent=first, title="below", cost_usd=1.0)
    last = await bench.session(shop, parent=below, title="last")
    await bench.session(shop, title="another tree", cost_usd=9.0)
    return {each.title: each for each in (root, first, second, below, last)}


def shown(state: dict[str, Any]) -> list[tuple[int, str]]:
    return [(row["level"], row["title"]) for row in state["rows"]]


async def test_each_session_stands_below_the_one_that_started_it(
    bench: Bench, tree: dict[str, Session]
) -> None:
    root, below = tree["root"], tree["below"]
    bench.waits[root.id] = SessionWaits(waits=(Wait(kind="child", what="its child"),))
    state = await bench.do("tree_get", session_id=below.id)
    assert shown(state) == [(0, "root"), (1, "first"), (2, "below"), (3, "last"), (1, "second")]
    rows = {row["title"]: row for row in state["rows"]}
    assert [wait["kind"] for wait in rows["root"]["waiting"]] == ["child"]
    assert (rows["second"]["waiting"], rows["second"]["status"]) == ([], "completed")
    assert rows["below"]["parent_session_id"] == tree["first"].id
    assert (state["exploration_id"], state["sessions"], state["live"]) == (
        root.exploration_id,
        5,
        2,
    )
    assert state["cost_usd"] == 1.75


async def test_the_limits_are_those_that_config_limits_shows(
    bench: Bench, tree: dict[str, Session]
) -> None:
    for each in tree.values():
        state = await bench.do("tree_get", session_id=each.id)
        expected = (await bench.do("config_limits", session_id=each.id))["limits"]
        for limits in (state["limits"], expected):  # the time goes on meanwhile
            assert limits["max_wall_seconds"].pop("used") >= 0
            limits["max_wall_seconds"].pop("left")
        assert state["limits"] == expected
        assert expected["max_cost_usd"]["used"] == 1.75


async def test_a_key_of_one_project_sees_its_sessions_and_counts_the_whole_tree(
    bench: Bench, tree: dict[str, Session]
) -> None:
    scope = f"project:{tree['root'].project_id}:ro"
    found = await bench.call("tree_get", {"session_id": tree["last"].id}, scope=scope)
    state = found.structured
    assert shown(state) == [(0, "root"), (1, "first"), (1, "second"), (0, "last")]
    assert state["rows"][-1]["parent_session_id"] is None
    assert (state["sessions"], state["cost_usd"]) == (5, 1.75)
    hidden = await bench.call("tree_get", {"session_id": tree["below"].id}, scope=scope)
    assert hidden.code == "not_found"


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_a_large_tree_comes_in_pages(
    bench: Bench, tree: dict[str, Session], limit: int
) -> None:
    rows: list[tuple[int, str]] = []
    cursor = None
    while True:
        page = await bench.do("tree_get", session_id=tree["root"].id, limit=limit, cursor=cursor)
        rows += shown(page)
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [title for _, title in rows] == ["root", "first", "below", "last", "second"]


async def test_a_cursor_that_is_in_no_place_of_the_tree_is_refused(
    bench: Bench, tree: dict[str, Session]
) -> None:
    text = await bench.error("tree_get", session_id=tree["root"].id, cursor="gogol_x")
    assert text.startswith("cursor: ")
