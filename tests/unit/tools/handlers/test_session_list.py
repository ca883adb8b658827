"""`session_list` over projects, states and texts: what is listed, in which order, and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.session.waits import SessionWaits, Wait
from oubliette.records import MAX_TITLE, Turn, title_of
from oubliette.runtime.store.operations import PutSession, PutTurn
from oubliette.runtime.store.queries import session_turns

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


async def listed(bench: Bench, scope: str = "read", **given: Any) -> list[str]:
    """The titles of all pages."""
    titles: list[str] = []
    cursor = None
    while True:
        result = await bench.call("session_list", {**given, "cursor": cursor}, scope=scope)
        assert not result.is_error, result.text
        titles += [each["title"] for each in result.structured["sessions"]]
        cursor = result.structured["next_cursor"]
        if cursor is None:
            return titles


@pytest.fixture
async def projects(bench: Bench) -> list[str]:
    """Two projects, whose sessions began in the order of the alphabet."""
    shop, blog = await bench.project("shop"), await bench.project("blog")
    for title, project, fields in (
        ("a", shop, {"status": "idle"}),
        ("b", blog, {"status": "running", "last_prompt": "mend the Straße"}),
        ("c", shop, {"status": "failed"}),
        ("d", blog, {"status": "completed", "last_prompt": "mend it"}),
        ("e", blog, {"status": "idle", "last_prompt": "MEND THE STRASSE"}),
    ):
        await bench.session(project, title=title, **fields)
    return [shop.id, blog.id]


@pytest.mark.parametrize(
    ("given", "titles"),
    [
        ({}, "abcde"),
        ({"newest_first": True}, "edcba"),
        ({"status": ["idle", "running"]}, "abe"),
        ({"status": ["idle", "failed", "completed"], "newest_first": True}, "edca"),
        ({"status": "failed"}, "c"),
        ({"status": []}, "abcde"),
        ({"text": "mend"}, "bde"),
        ({"text": "strasse"}, "be"),
        ({"text": "B"}, "b"),
        ({"text": "mend", "status": ["idle", "completed"]}, "de"),
        ({"text": "nothing has this"}, ""),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_sessions_of_all_projects_are_listed_by_state_and_text(
    bench: Bench, projects: list[str], given: dict[str, Any], titles: str, limit: int
) -> None:
    assert "".join(await listed(bench, **given, limit=limit)) == titles


async def test_a_key_of_one_project_lists_its_sessions_alone(
    bench: Bench, projects: list[str]
) -> None:
    shop, blog = projects
    assert await listed(bench, f"project:{shop}:ro") == ["a", "c"]
    assert await listed(bench, f"project:{shop}", text="mend") == []
    assert await listed(bench, f"project:{blog}", status=["idle", "failed"]) == ["e"]
    hidden = await bench.call("session_list", {"project_id": blog}, scope=f"project:{shop}")
    assert hidden.code == "not_found"


async def test_sessions_of_a_deleted_project_are_not_listed(
    bench: Bench, projects: list[str]
) -> None:
    done = await bench.project("done")
    await bench.session(done, title="f")
    assert "f" in await listed(bench)
    await bench.do("project_delete", project_id=done.id)
    assert await listed(bench, limit=1) == ["a", "b", "c", "d", "e"]


async def test_a_page_ends_where_it_has_looked_at_much(
    bench: Bench, projects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_turns, "WALK", 2)
    page = await bench.do("session_list", text="mend it", limit=5)
    assert (page["sessions"], page["next_cursor"] is None) == ([], False)
    assert await listed(bench, text="mend it", limit=5) == ["d"]


async def test_a_row_shows_what_a_live_session_waits_for_if_asked(bench: Bench) -> None:
    project = await bench.project()
    busy = await bench.session(project, live=True, title="busy")
    await bench.session(project, title="over")
    bench.waits[busy.id] = SessionWaits(waits=(Wait(kind="model", what="the agent"),))
    first, second = (await bench.do("session_list", waiting=True))["sessions"]
    assert [each["what"] for each in first["waiting"]] == ["the agent"]
    assert second["waiting"] == []
    assert [each["waiting"] for each in (await bench.do("session_list"))["sessions"]] == [[], []]


async def test_a_session_of_an_earlier_release_has_the_first_line_of_its_first_prompt(
    bench: Bench,
) -> None:
    session = await bench.session(await bench.project(), last_prompt="and now this")
    first = Turn(
        session_id=session.id, number=1, prompt="\n  Mend it.\nNow.", state="done", created_at=1.0
    )
    await bench.put(PutTurn(first))
    assert await listed(bench) == ["Mend it."]
    assert (await bench.do("session_get", session_id=session.id))["title"] == "Mend it."
    await bench.put(PutSession(msgspec.structs.replace(session, title="Given")))
    assert (await bench.do("session_get", session_id=session.id))["title"] == "Given"


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("fix it", "fix it"),
        ("\n \n  fix it \nnow", "fix it"),
        (" \n", ""),
        ("x" * 999, "x" * MAX_TITLE),
    ],
)
def test_the_title_is_the_first_line_with_a_text(prompt: str, title: str) -> None:
    assert title_of(prompt) == title


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ({}, None),
        ({"autonomy": "off", "autonomy_chosen": True}, "off"),
        ({"autonomy": "low", "autonomy_chosen": True}, "low"),
    ],
)
async def test_the_autonomy_is_shown_where_it_was_given(
    bench: Bench, stored: dict[str, Any], shown: str | None
) -> None:
    session = await bench.session(await bench.project(), **stored)
    assert (await bench.do("session_get", session_id=session.id))["autonomy"] == shown
    assert [each["autonomy"] for each in (await bench.do("session_list"))["sessions"]] == [shown]


async def test_a_title_goes_with_a_new_session(bench: Bench) -> None:
    project = await bench.project()
    await bench.do("session_spawn", project_id=project.id, prompt="p", title="Night run")
    assert bench.spawns[-1].title == "Night run"
    text = await bench.error("session_spawn", project_id=project.id, prompt="p", title="a\nb")
    assert text.startswith("title")
