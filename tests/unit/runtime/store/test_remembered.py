"""Listings that are remembered say at any time what is stored."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import AlreadyExists, Unavailable
from oubliette.runtime.store import Database, operations
from oubliette.runtime.store.remembered import MOST, Remembered
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.conftest import WAIT, Store

pytestmark = pytest.mark.anyio


async def listed(store: Store, part: str | None = None) -> tuple[list[str], list[str]]:
    page, containers = await store.reader.projects_with_containers(part, 100, None)
    return [each.name for each in page.records], [each.id for each in containers]


async def test_a_listing_tells_of_each_change_that_was_acknowledged(store):
    assert await listed(store) == ([], [])
    store.write(operations.PutProject(samples.project(1, name="A")))
    assert await listed(store) == (["A"], [])
    store.write(operations.PutContainer(samples.container(1)))
    assert await listed(store) == (["A"], ["cont_1"])
    store.write(operations.PutProject(samples.project(1, name="B")), operations.PutMeta("a", "b"))
    assert await listed(store) == (["B"], ["cont_1"])
    store.write(operations.DeleteContainer("cont_1"))
    assert await listed(store) == (["B"], [])
    assert await listed(store, "a") == ([], [])


async def test_a_change_that_failed_leaves_the_listing_as_it_was(store):
    store.write(operations.PutProject(samples.project(1, name="A")))
    assert (await listed(store))[0] == ["A"]
    with pytest.raises(AlreadyExists):
        store.write(operations.PutProject(samples.project(2, name="A")))
    assert (await listed(store))[0] == ["A"]


async def test_a_listing_is_not_read_again_while_nothing_of_it_changes(store):
    store.write(operations.PutProject(samples.project(1, name="A")))
    first = await store.reader.projects_with_containers(None, 100, None)
    store.write(operations.AppendEvents((samples.event(0),)))
    # Another machine may change what PostgreSQL keeps: there nothing is remembered.
    alone = isinstance(store.database, Database)
    assert (await store.reader.projects_with_containers(None, 100, None) is first) is alone


async def test_readers_beside_a_busy_writer_never_see_the_past(store):
    """Each sees at least what was acknowledged before it asked, and never less than before."""
    acknowledged = 0

    def write() -> None:
        nonlocal acknowledged
        for number in range(1, 201):
            store.write(operations.PutProject(samples.project(1, name=f"{number:03}")))
            acknowledged = number

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = 0
        async with asyncio.timeout(WAIT * 3):
            while acknowledged < 200:
                least = acknowledged
                names, _ = await listed(store)
                now = int(names[0]) if names else 0
                assert now >= max(seen, least)
                seen = now
                await asyncio.sleep(0)
    finally:
        thread.join()
    assert (await listed(store))[0] == ["200"]


async def test_who_cannot_write_remembers_nothing(tmp_path):
    path = tmp_path / "store.db"
    with contextlib.closing(Store(Database(path)).start()) as store:
        store.write(operations.PutProject(samples.project(1, name="A")))
        with contextlib.closing(Store(Database(path, read_only=True))) as other:
            assert (await listed(other))[0] == ["A"]
            store.write(operations.PutProject(samples.project(1, name="B")))
            assert (await listed(other))[0] == ["B"]


async def test_a_closed_reader_answers_nothing_from_memory(store):
    await listed(store)
    store.reader.close()
    with pytest.raises(Unavailable):
        await listed(store)


@given(st.lists(st.sampled_from(["ask", "answer", "begin", "end"]), max_size=40))
def test_what_was_asked_before_or_during_a_change_is_not_remembered_after_it(steps):
    remembered, stored, under_way = Remembered(alone=True), 0, False
    asked: list[tuple[int | None, int]] = []
    for step in steps:
        if step == "ask":
            asked.append((remembered.now(), stored))
        elif step == "answer" and asked:
            now, answer = asked.pop()
            remembered.put("q", now, [answer])
        elif step == "begin" and not under_way:
            under_way = remembered.begin([operations.DeleteContainer("c")])
        elif step == "end" and under_way:
            stored, under_way = stored + 1, False
            remembered.end()
        found = remembered.find("q", remembered.now())
        assert found is None or found == [stored]


def test_only_so_many_answers_are_remembered():
    remembered = Remembered(alone=True)
    for number in range(MOST * 2):
        remembered.put(number, remembered.now(), number)
    kept = [n for n in range(MOST * 2) if remembered.find(n, remembered.now()) is not None]
    assert kept == list(range(MOST, MOST * 2))
