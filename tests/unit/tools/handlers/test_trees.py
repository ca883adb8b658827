"""`tree_list`, `tree_get`: what lives, who works below whom, and what of it a key sees."""

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


async def test_trees_that_live_are_listed_with_what_waits_and_their_newest_line(
    bench: Bench, tree: dict[str, Session]
) -> None:
    root, first = tree["root"], tree["first"]
    bench.waits[root.id] = SessionWaits(waits=(Wait(kind="child", what="its child"),))
    asks = Wait(kind="permission", what="a decision on rm", until=9.0)
    bench.waits[first.id] = SessionWaits(waits=(asks,))
    await bench.write(root, text="I start\none.\n\n", role="assistant")
    await bench.write(first, "system", stage="agent")
    (listed,) = (await bench.do("tree_list"))["trees"]
    assert {name: listed[name] for name in ("title", "sessions", "live", "cost_usd")} == {
        "title": "root",
        "sessions": 5,
        "live": 2,
        "cost_usd": 1.75,
    }
    assert (listed["session_id"], listed["max_cost_usd"]) == (root.id, 10.0)
    assert listed["waiting"] == [
        {
            "session_id": first.id,
            "kind": "permission",
            "what": "a decision on rm",
            "until": 9.0,
        }
    ]
    assert listed["newest"] == "one."
    await bench.write(first, "tool_call", call_id="1", tool="bash", arguments={})
    (listed,) = (await bench.do("tree_list"))["trees"]
    assert listed["newest"] == "bash"


async def test_the_newest_trees_come_first_and_those_left_out_are_not_hidden(
    bench: Bench, tree: dict[str, Session]
) -> None:
    shop = await bench.project("other")
    await bench.session(shop, live=True, title="newer")
    trees = await bench.do("tree_list")
    assert [each["title"] for each in trees["trees"]] == ["newer", "root"]
    assert trees["more"] is False
    first = await bench.do("tree_list", limit=1)
    assert ([each["title"] for each in first["trees"]], first["more"]) == (["newer"], True)
    only = await bench.do("tree_list", project_id=tree["root"].project_id)
    assert [each["title"] for each in only["trees"]] == ["root"]


async def test_a_key_of_one_project_is_shown_no_root_that_it_does_not_reach(
    bench: Bench, tree: dict[str, Session]
) -> None:
    blog = tree["below"].project_id
    assert (await bench.call("tree_list", scope=f"project:{blog}")).structured["trees"] == []
    project = await bench.reader.project(blog)
    assert project is not None
    mine = await bench.session(project, parent=tree["first"], live=True, title="mine")
    found = await bench.call("tree_list", scope=f"project:{blog}:ro")
    (listed,) = found.structured["trees"]
    assert (listed["session_id"], listed["title"]) == (mine.id, "mine")
    assert (listed["sessions"], listed["live"]) == (6, 1)
