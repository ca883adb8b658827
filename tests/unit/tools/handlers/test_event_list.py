"""`event_list`: the logs of all sessions in the order of commits, as far as a key reaches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from oubliette.records import Session
from oubliette.runtime.store.queries import event_log
from oubliette.tools.handlers import event_list

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


class Logs(NamedTuple):
    shop: Session
    blog: Session


@pytest.fixture
async def logs(bench: Bench) -> Logs:
    """Two sessions of two projects, whose events have the texts a to e in the order of commits."""
    shop = await bench.session(await bench.project("shop"), live=True)
    blog = await bench.session(await bench.project("blog"), live=True)
    for text, session, kind in (
        ("a", shop, "message"),
        ("b", blog, "delta"),
        ("c", shop, "delta"),
        ("d", blog, "message"),
        ("e", blog, "error"),
    ):
        await bench.write(session, kind, text=text, more='The "Straße"' if text in "bc" else "")
    return Logs(shop, blog)


async def read(bench: Bench, scope: str = "read", after: int = -1, **given: Any) -> str:
    """The texts of all pages."""
    found = ""
    while True:
        result = await bench.call("event_list", {**given, "after": after}, scope=scope)
        assert not result.is_error, result.text
        page = result.structured
        found += "".join(each["text"] for each in page["events"])
        after = page["next"]
        if not page["more"]:
            return found


@pytest.mark.parametrize("at_once", [1, 2, 500])
@pytest.mark.parametrize("walk", [1, 3, 20_000])
async def test_events_of_all_sessions_come_in_the_order_of_commits(
    bench: Bench, logs: Logs, monkeypatch: pytest.MonkeyPatch, at_once: int, walk: int
) -> None:
    monkeypatch.setattr(event_log, "WALK", walk)
    shop, blog = logs
    for given, texts in [
        ({}, "abcde"),
        ({"project_id": blog.project_id}, "bde"),
        ({"session_id": shop.id}, "ac"),
        ({"types": ["delta", "error"]}, "bce"),
        ({"types": ["delta"], "session_id": blog.id}, "b"),
        ({"text": 'the "strasse"'}, "bc"),
        ({"text": "straße", "project_id": shop.project_id, "types": ["delta"]}, "c"),
        ({"text": "nothing"}, ""),
    ]:
        assert await read(bench, **given, max_events=at_once) == texts, given


async def test_a_cursor_goes_on_where_it_was(bench: Bench, logs: Logs) -> None:
    first = await bench.do("event_list", after=-1, max_events=2)
    assert (first["next"], first["more"]) == (first["events"][-1]["seq"], True)
    assert await read(bench, after=first["next"]) == "cde"
    now = await bench.do("event_list")
    assert (now["events"], now["more"]) == ([], False)
    await bench.write(logs.shop, text="f")
    assert await read(bench, after=now["next"]) == "f"


async def test_a_key_of_one_project_reads_its_events_alone(bench: Bench, logs: Logs) -> None:
    scope = f"project:{logs.shop.project_id}:ro"
    assert await read(bench, scope) == "ac"
    assert await read(bench, scope, text="a") == "ac"
    for hidden in ({"session_id": logs.blog.id}, {"project_id": logs.blog.project_id}):
        assert (await bench.call("event_list", hidden, scope=scope)).code == "not_found"


@pytest.mark.parametrize(
    ("caller", "names"),
    [
        ({"scope": "read"}, False),
        ({"scope": "write"}, True),
        ({"scope": "write", "minted": True}, False),
        ({"scope": "write", "transport": "socket", "session_id": "s"}, False),
        ({"scope": "admin", "minted": True}, True),
    ],
)
async def test_names_of_principals_are_neither_shown_nor_found_by_agents_and_those_who_only_read(
    bench: Bench, logs: Logs, caller: dict[str, Any], names: bool
) -> None:
    await bench.write(logs.shop, "permission_settled", by="Alice", text="f")
    given = {"after": -1, "types": ["permission_settled"]}
    (event,) = (await bench.call("event_list", given, **caller)).structured["events"]
    assert event.get("by") == ("Alice" if names else None)
    for text, found in (("lic", names), ("f", True)):
        searched = await bench.call("event_list", given | {"text": text}, **caller)
        assert bool(searched.structured["events"]) is found


async def test_a_large_event_is_a_reference_and_is_not_searched(bench: Bench, logs: Logs) -> None:
    await bench.write(logs.shop, text="x" * event_list.MAX_WHOLE)
    page = await bench.do("event_list", after=-1)
    assert page["events"][-1]["ref"] == {"session_id": logs.shop.id, "index": 2}
    assert await read(bench, text="xxx") == ""


async def test_a_call_waits_for_the_first_event_that_is_asked_for(bench: Bench, logs: Logs) -> None:
    bench.services.spawn, bench.services.store = bench.system.spawn, bench.store
    start = (await bench.do("event_list"))["next"]
    waiting = asyncio.ensure_future(
        bench.do("event_list", after=start, types=["error"], wait_seconds=60)
    )
    for kind in ("delta", "message", "error"):
        await bench.write(logs.blog, kind, text=kind)
    page = await waiting
    assert [each["text"] for each in page["events"]] == ["error"]
    assert not [name for name in bench.system.names if name.startswith("log-watch/")]


async def test_a_wait_ends_at_its_time(bench: Bench, logs: Logs) -> None:
    bench.services.spawn, bench.services.store = bench.system.spawn, bench.store
    page = await bench.do("event_list", wait_seconds=0.01)
    assert (page["events"], page["more"]) == ([], False)
