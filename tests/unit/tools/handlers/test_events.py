"""Reading a log: cursors, waiting, ends, trees, pieces."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette import ids
from oubliette.records import Event
from oubliette.runtime.store.operations import DeleteSessionEvents, PutSession
from oubliette.runtime.store.queries import event_log
from oubliette.tools.schema import response_size
from oubliette.tools.schema.views import event_view

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


async def started(bench: Bench, *, live: bool = True, events: int = 0, **fields: Any) -> Any:
    session = await bench.session(await bench.project(), live=live, **fields)
    for number in range(events):
        await bench.write(session, text=f"e{number}")
    return session


async def read(bench: Bench, session: Any, **arguments: Any) -> dict[str, Any]:
    return await bench.do("session_events", session_id=session.id, **arguments)


def texts(page: dict[str, Any]) -> list[str]:
    return [event["text"] for event in page["events"]]


@pytest.mark.parametrize("live", [True, False])
async def test_a_cursor_tells_what_follows_it(bench: Bench, live: bool) -> None:
    session = await started(bench, live=live, events=5)
    first = await read(bench, session, max_events=2)
    assert (texts(first), first["last_index"], first["more"]) == (["e0", "e1"], 1, True)
    rest = await read(bench, session, since_index=first["last_index"])
    assert (texts(rest), rest["last_index"], rest["more"]) == (["e2", "e3", "e4"], 4, False)
    none = await read(bench, session, since_index=4)
    assert (none["events"], none["last_index"], none["more"]) == ([], 4, False)


async def test_an_event_is_flat_and_its_own_fields_cannot_be_masked(bench: Bench) -> None:
    session = await started(bench)
    await bench.write(session, "tool_call", tool="t", type="x", session_id="y", index=99, seq=-1)
    (event,) = (await read(bench, session))["events"]
    assert event["type"] == "tool_call"
    assert event["session_id"] == session.id
    assert (event["index"], event["tool"], event["version"]) == (0, "t", 1)
    assert event["seq"] > 0


async def test_waiting_ends_with_the_first_event(bench: Bench) -> None:
    session = await started(bench, events=1)
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(read(bench, session, since_index=0, wait_seconds=60))
        await bench.waited.wait()
        assert not waiting.done()
        await bench.write(session, text="news")
        assert texts(await waiting) == ["news"]


async def test_waiting_ends_after_its_time(bench: Bench) -> None:
    session = await started(bench)
    async with asyncio.timeout(5):
        page = await read(bench, session, wait_seconds=0.05)
    assert (page["events"], page["last_index"]) == ([], -1)


async def test_nobody_waits_for_a_session_at_rest(bench: Bench) -> None:
    session = await started(bench, live=False)
    async with asyncio.timeout(5):
        await read(bench, session, wait_seconds=600)


async def test_waiting_ends_when_the_session_comes_to_rest(bench: Bench) -> None:
    session = await started(bench)
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(read(bench, session, wait_seconds=60))
        await bench.waited.wait()
        await bench.session_registry.session(session.id).kill()
        page = await waiting
    assert page["events"] == []


async def test_waiting_goes_on_when_the_actor_is_restarted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await started(bench)
    monkeypatch.setattr(bench.sessions, "leave", lambda *_: None)  # it failed, and comes again
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(read(bench, session, wait_seconds=60))
        await bench.waited.wait()
        await bench.session_registry.session(session.id).kill()
        assert not waiting.done()
        bench.run(session)
        await bench.write(session, text="again")
        assert texts(await waiting) == ["again"]


async def test_a_waiting_caller_counts_as_present(bench: Bench) -> None:
    from oubliette.actors.caller.messages import GetCaller

    session = await started(bench, caller_id="ant")
    await read(bench, session)
    caller = await bench.services.caller_ref("alice", "ant")
    assert (await caller.ask(GetCaller())).present
    await bench.call("session_events", {"session_id": session.id}, principal="mallory")
    assert bench.system.lookup("callers/mallory/ant") is None


# ---------------------------------------------------------------------- the end of a turn


async def test_a_running_turn_is_not_completed(bench: Bench) -> None:
    session = await started(bench, events=1)
    page = await read(bench, session)
    assert not page["completed"]  # no turn yet
    await bench.turn(session, None)
    page = await read(bench, session)
    assert (page["completed"], page["final_response"]) == (False, None)


@pytest.mark.parametrize("live", [True, False])
async def test_completed_comes_with_the_last_event_and_the_answer(bench: Bench, live: bool) -> None:
    session = await started(bench, live=live, events=3)
    await bench.turn(session, "completed", "42")
    early = await read(bench, session, max_events=2)
    assert (early["completed"], early["final_response"], early["more"]) == (False, None, True)
    page = await read(bench, session, since_index=1)
    assert (page["completed"], page["failed"], page["error"]) == (True, False, None)
    assert page["final_response"] == "42"


async def test_a_failed_turn_is_completed_with_an_error_and_the_session_lives(
    bench: Bench,
) -> None:
    session = await started(bench)
    await bench.turn(session, "failed", "no such file")
    page = await read(bench, session)
    assert (page["completed"], page["failed"], page["error"]) == (True, False, "no such file")
    await bench.write(session, "error", message="boom")
    assert (await read(bench, session))["error"] == "boom"


async def test_an_interrupted_turn_is_no_error(bench: Bench) -> None:
    session = await started(bench)
    await bench.turn(session, "interrupted")
    page = await read(bench, session)
    assert (page["completed"], page["failed"], page["error"]) == (True, False, None)


async def test_failed_says_that_the_session_has_and_why(bench: Bench) -> None:
    session = await started(bench, live=False, status="failed", status_reason="container lost")
    page = await read(bench, session)
    assert (page["status"], page["failed"], page["error"]) == ("failed", True, "container lost")


# ---------------------------------------------------------------------- cut logs, large events


async def test_a_log_that_was_cut_says_so(bench: Bench) -> None:
    session = await started(bench, live=False, events=5)
    await bench.put(DeleteSessionEvents(session.id, 2))
    page = await read(bench, session)
    assert (page["truncated_before"], texts(page)) == (3, ["e3", "e4"])
    assert (await read(bench, session, since_index=2))["truncated_before"] is None


async def test_a_page_is_small_enough_for_clients_that_drop_large_messages(bench: Bench) -> None:
    session = await started(bench, live=False)
    for _ in range(12):
        await bench.write(session, text='"\\' * 30_000)
    seen: list[int] = []
    index = -1
    while True:
        result = await bench.call(
            "session_events", {"session_id": session.id, "since_index": index}
        )
        page = result.structured
        wire = msgspec.json.encode({"structuredContent": page, "content": [{"text": result.text}]})
        assert len(wire) < 1024 * 1024
        seen += [event["index"] for event in page["events"]]
        index = page["last_index"]
        if not page["more"]:
            break
    assert seen == list(range(12))


async def test_a_large_event_is_told_by_reference_and_read_in_pieces(bench: Bench) -> None:
    session = await started(bench, live=False)
    text = 'é"\\x' * 400_000
    await bench.write(session, text=text, type="x", seq=-1)
    (event,) = (await read(bench, session))["events"]
    assert event["ref"] == {"session_id": session.id, "index": 0}
    assert event["size"] == response_size.size({"text": text, "type": "x", "seq": -1})
    assert "text" not in event
    whole, offset, pieces = "", 0, 0
    while offset is not None:
        result = await bench.call(
            "event_read", {"session_id": session.id, "index": 0, "offset": offset}
        )
        piece = result.structured
        wire = msgspec.json.encode({"structuredContent": piece, "content": [{"text": result.text}]})
        assert len(wire) < 1024 * 1024
        assert len(piece["data"].encode()) <= 512 * 1024
        whole += piece["data"]
        offset = piece["next_offset"]
        pieces += 1
    read_again = {name: json.loads(whole)[name] for name in ("text", "index", "type", "seq")}
    assert read_again == {"text": text, **{name: event[name] for name in ("index", "type", "seq")}}
    assert len(whole.encode()) == piece["total"]
    assert pieces > 2


async def test_a_part_of_a_large_event_takes_the_memory_of_a_part(bench: Bench) -> None:
    session = await started(bench, live=False)
    size = 8 * 1024 * 1024
    await bench.write(session, text="é" * (size // 2))
    of_large = partial(bench.do, "event_read", session_id=session.id, index=0)
    await of_large()  # everything that a first call needs
    for ask in (
        partial(of_large, offset=size - 100_001),
        partial(read, bench, session),
        partial(read, bench, session, include_children=True),
    ):
        tracemalloc.start()
        await ask()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < size / 2


async def test_an_event_that_a_message_can_take_is_told_whole(bench: Bench) -> None:
    session = await started(bench, live=False)
    await bench.turn(session, "completed", "r" * 2_000_000)
    await bench.write(session, text="x" * 400_000)
    result = await bench.call("session_events", {"session_id": session.id})
    assert len(result.structured["events"][0]["text"]) == 400_000
    assert result.structured["final_response"].endswith("… (cut; 2000000 characters)")
    wire = msgspec.json.encode(
        {"structuredContent": result.structured, "content": [{"text": result.text}]}
    )
    assert len(wire) < 1024 * 1024


async def test_reading_begins_between_characters_only(bench: Bench) -> None:
    session = await started(bench, live=False)
    event = await bench.write(session, text="é")
    place = json.dumps(event_view(event), ensure_ascii=False, separators=(",", ":")).encode()
    inside = place.index("é".encode()) + 1
    text = await bench.error("event_read", session_id=session.id, index=0, offset=inside)
    assert text.startswith(f"offset: {inside} is not the start of a piece")
    total = (await bench.do("event_read", session_id=session.id, index=0))["total"]
    end = await bench.do("event_read", session_id=session.id, index=0, offset=total)
    assert (end["data"], end["next_offset"]) == ("", None)
    await bench.error("event_read", session_id=session.id, index=0, offset=total + 1)
    await bench.error("event_read", session_id=session.id, index=1)


def test_an_event_with_half_a_surrogate_pair_can_be_told() -> None:
    """Agents print such things; JSON cannot hold them."""
    event = Event(session_id="s", index=0, ts=0.0, type="message", data={"text": "\ud800"})
    assert response_size.size(event_view(event)) > 0


async def test_long_texts_are_cut_where_many_are_told(bench: Bench) -> None:
    project = await bench.project()
    for _ in range(70):
        await bench.session(
            project, last_prompt='"' * 100_000, final_response="r" * 300_000, turn_count=1
        )
    seen: list[str] = []
    cursor = None
    while True:
        result = await bench.call(
            "session_list", {"project_id": project.id, "limit": 1000, "cursor": cursor}
        )
        wire = msgspec.json.encode(
            {"structuredContent": result.structured, "content": [{"text": result.text}]}
        )
        assert len(wire) < 1024 * 1024
        seen += [each["session_id"] for each in result.structured["sessions"]]
        cursor = result.structured["next_cursor"]
        if cursor is None:
            break
    assert len(set(seen)) == len(seen) == 70
    one = await bench.do("session_get", session_id=seen[0])
    assert one["final_response"].endswith("… (cut; 300000 characters)")


# ---------------------------------------------------------------------- trees


async def tree(bench: Bench) -> tuple[Any, Any, Any]:
    project = await bench.project()
    root = await bench.session(project, live=True)
    child = await bench.session(project, live=True, parent=root)
    grandchild = await bench.session(project, live=True, parent=child)
    return root, child, grandchild


async def test_a_tree_is_told_in_the_order_in_which_it_was_written(bench: Bench) -> None:
    root, child, grandchild = await tree(bench)
    stranger = await bench.session(await bench.project("q"), live=True)
    for number, session in enumerate([root, child, stranger, grandchild, root, child]):
        await bench.write(session, text=f"e{number}")
    page = await read(bench, root, include_children=True)
    assert texts(page) == ["e0", "e1", "e3", "e4", "e5"]
    assert [event["session_id"] for event in page["events"][:2]] == [root.id, child.id]
    assert texts(await read(bench, child, include_children=True)) == ["e1", "e3", "e5"]
    seen, cursor = [], -1
    while True:
        page = await read(bench, root, include_children=True, since_index=cursor, max_events=2)
        seen += texts(page)
        cursor = page["last_index"]
        if not page["more"]:
            break
    assert seen == ["e0", "e1", "e3", "e4", "e5"]


async def test_a_tree_that_rested_while_others_wrote_is_told_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "WALK", 3)
    root, child, _ = await tree(bench)
    stranger = await bench.session(await bench.project("q"), live=True)
    for number, writer in enumerate(
        [root, stranger, child, *[stranger] * 9, root, *[stranger] * 9]
    ):
        await bench.write(writer, text=f"e{number}")
    seen, cursor, more = [], -1, True
    while more:
        page = await read(bench, root, include_children=True, since_index=cursor)
        seen += texts(page)
        cursor, more = page["last_index"], page["more"]
    assert seen == ["e0", "e2", "e12"]
    await bench.write(child, text="later")
    assert texts(await read(bench, root, include_children=True, since_index=cursor)) == ["later"]


async def test_waiting_for_a_tree_ends_with_an_event_of_any_child(bench: Bench) -> None:
    root, _, grandchild = await tree(bench)
    await bench.write(root, text="old")
    cursor = (await read(bench, root, include_children=True))["last_index"]
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(
            read(bench, root, include_children=True, since_index=cursor, wait_seconds=60)
        )
        await bench.waited.wait()
        assert not waiting.done()
        await bench.write(grandchild, text="deep")
        assert texts(await waiting) == ["deep"]


async def test_a_cut_log_in_a_tree_says_so(bench: Bench) -> None:
    root, child, _ = await tree(bench)
    for number in range(3):
        await bench.write(child, text=f"c{number}")
    await bench.put(
        PutSession(msgspec.structs.replace(child, status="completed")),
        DeleteSessionEvents(child.id, 1),
    )
    page = await read(bench, root, include_children=True)
    assert texts(page) == ["c2"]
    assert page["truncated_before"] is not None
    later = await read(bench, root, include_children=True, since_index=page["last_index"])
    assert later["truncated_before"] is None


async def test_an_unknown_session_is_not_found(bench: Bench) -> None:
    for tool in ("session_events", "session_get", "session_end", "session_interrupt"):
        text = await bench.error(tool, session_id=ids.new_id(ids.SESSION))
        assert "not found" in text


def test_the_version_of_an_agent_is_shown_beside_that_of_the_event() -> None:
    data = {"kind": "ready", "agent": "scripted", "version": "0.1.0", "index": "theirs"}
    event = Event(session_id="gogol_1", index=4, ts=1.0, type="system", data=data, version=2)
    view = event_view(event)
    assert (view["agent_version"], view["version"], view["index"]) == ("0.1.0", 2, 4)
    assert "agent_version" not in event_view(msgspec.structs.replace(event, data={"kind": "x"}))
