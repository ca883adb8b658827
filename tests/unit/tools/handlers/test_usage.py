"""`usage_report`: what is summed up, and what a key sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.records import Principal, Used
from oubliette.runtime.store.operations import AddUsage, PutPrincipal

if TYPE_CHECKING:
    from oubliette.records import Session
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

HOUR = 3600


def used(session: Session, hour: int, model: str = "", **fields: Any) -> AddUsage:
    return AddUsage(
        session_id=session.id,
        hour=hour,
        project_id=session.project_id,
        principal=session.principal,
        agent=session.agent,
        model=model,
        used=Used(**fields),
    )


@pytest.fixture
async def sessions(bench: Bench) -> list[Session]:
    """Sessions of alice and bob in a project of each, with usage on two days."""
    shop, blog = await bench.project("shop"), await bench.project("blog")
    hers = await bench.session(shop, title="hers")
    his = await bench.session(blog, title="his", principal="bob")
    await bench.put(
        PutPrincipal(Principal(id="alice", name="Alice", created_at=0.0)),
        PutPrincipal(Principal(id="bob", name="Bob", created_at=0.0)),
        used(hers, 10, "small", input_tokens=10, output_tokens=1, measured_usd=0.5, turns=1),
        used(hers, 30, "large", input_tokens=20, reported_usd=2.0, turns=2),
        used(his, 30, input_tokens=5, turns=1),
    )
    return [hers, his]


def row(key: str | None, name: str | None, *values: Any) -> dict[str, Any]:
    fields = ("input_tokens", "output_tokens", "measured_cost_usd", "reported_cost_usd", "turns")
    return {**dict(zip(fields, values, strict=True)), "key": key, "name": name}


async def test_measured_and_reported_costs_are_apart_and_null_where_they_are_unknown(
    bench: Bench, sessions: list[Session]
) -> None:
    hers, his = sessions
    report = await bench.do("usage_report", by="session")
    assert report["rows"] == [
        row(hers.id, "hers", 30, 1, 0.5, 2.0, 3),
        row(his.id, "his", 5, None, None, None, 1),
    ]
    total = row(None, None, 35, 1, 0.5, 2.0, 4)
    assert report["total"] == {name: total[name] for name in report["total"]}
    assert (report["by"], report["since"], report["more"]) == ("session", None, False)


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("agent", [("scripted", None, 35)]),
        ("day", [("1970-01-02", None, 25), ("1970-01-01", None, 10)]),
        ("model", [("large", None, 20), ("small", None, 10), (None, None, 5)]),
        ("principal", [("alice", "Alice", 30), ("bob", "Bob", 5)]),
        ("project", [("shop", "shop", 30), ("blog", "blog", 5)]),
    ],
)
async def test_usage_is_summed_up_by_what_is_asked_for(
    bench: Bench, sessions: list[Session], by: str, rows: list[tuple[Any, ...]]
) -> None:
    found = (await bench.do("usage_report", by=by))["rows"]
    ids = {each.project_id for each in sessions}
    keys = [each["name"] if each["key"] in ids else each["key"] for each in found]
    names = [each["name"] for each in found]
    tokens = [each["input_tokens"] for each in found]
    assert list(zip(keys, names, tokens, strict=True)) == rows


async def test_the_hour_of_since_counts_as_a_whole(bench: Bench, sessions: list[Session]) -> None:
    late = await bench.do("usage_report", since=30 * HOUR + 1799.5)
    assert (late["since"], late["total"]["input_tokens"]) == (30 * HOUR, 25)
    assert (await bench.do("usage_report", since=31 * HOUR))["rows"] == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"scope": "admin"}, True),
        ({"scope": "write"}, True),
        ({"scope": "read"}, False),
        ({"scope": "write", "minted": True}, False),
        ({"scope": "write", "session_id": "gogol_1"}, False),
    ],
)
async def test_agents_and_keys_that_may_only_read_see_the_other_principals_as_one(
    bench: Bench, sessions: list[Session], given: dict[str, Any], *, named: bool
) -> None:
    await bench.put(used(sessions[1], 30, turns=4))
    found = await bench.call("usage_report", {"by": "principal"}, principal="bob", **given)
    rows = [(each["key"], each["name"], each["turns"]) for each in found.structured["rows"]]
    assert rows == [("alice", "Alice", 3) if named else (None, None, 3), ("bob", "Bob", 5)]


async def test_a_key_of_one_project_sees_the_usage_of_that_project_alone(
    bench: Bench, sessions: list[Session]
) -> None:
    hers, his = sessions
    for by in ("session", "project", "day"):
        scope = f"project:{his.project_id}:ro"
        found = (await bench.call("usage_report", {"by": by}, scope=scope)).structured
        assert (len(found["rows"]), found["total"]["input_tokens"]) == (1, 5)
        assert (await bench.do("usage_report", by=by, project_id=his.project_id)) == found
    only = await bench.call(
        "usage_report", {"project_id": hers.project_id}, scope=f"project:{his.project_id}"
    )
    assert only.code == "not_found"


async def test_more_rows_than_the_limit_are_left_out_and_in_the_total(
    bench: Bench, sessions: list[Session]
) -> None:
    report = await bench.do("usage_report", by="session", limit=1)
    assert ([each["name"] for each in report["rows"]], report["more"]) == (["hers"], True)
    assert report["total"]["turns"] == 4
