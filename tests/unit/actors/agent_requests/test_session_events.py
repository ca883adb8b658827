"""Events that an agent reads: the page of the clients' tool, with each event whole."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette import ids
from oubliette.actors.agent_requests.session_events import session_events
from oubliette.contract.session_tools import EventsParams
from oubliette.errors import NotFound
from oubliette.tools.schema.views import MAX_EVENT
from tests.unit.tools import toolkit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with toolkit.bench() as made:
        yield made


async def started(bench: Bench, *, live: bool = True, events: int = 0, **fields: Any) -> Any:
    session = await bench.session(await bench.project(), live=live, **fields)
    for number in range(events):
        await bench.write(session, text=f"e{number}")
    return session


async def read(bench: Bench, session: Any, *, bare: bool = False, **arguments: Any) -> Any:
    context: Any = SimpleNamespace(
        reader=bench.reader,
        session_registry=bench.session_registry,
        config=bench.services.config,
        clock=bench.clock,
    )
    asked = EventsParams(session_id=session.id, **arguments)
    return await session_events(context, session, asked, bare=bare)


def texts(page: dict[str, Any]) -> list[str]:
    return [event["text"] for event in page["events"]]


@pytest.mark.parametrize("live", [True, False])
async def test_agents_and_clients_read_the_same_page(bench: Bench, live: bool) -> None:
    session = await started(bench, live=live, events=3)
    await bench.turn(session, "completed", "the answer")
    for asked in ({}, {"max_events": 2}, {"since_index": 1}, {"since_index": 2}):
        mine = await read(bench, session, **asked)
        theirs = await bench.do("session_events", session_id=session.id, **asked)
        assert texts(mine) == texts(theirs)
        # Clients get the answer beside the end of the log only.
        one, other = ({**page, "events": (), "final_response": ""} for page in (mine, theirs))
        assert one == {**other, "events": ()}


@pytest.mark.parametrize("live", [True, False])
async def test_a_turn_is_not_over_for_its_parent_before_the_end_of_the_log(
    bench: Bench, live: bool
) -> None:
    session = await started(bench, live=live, events=3)
    await bench.turn(session, "completed", "x")
    page = await read(bench, session, max_events=2)
    assert (page["completed"], page["more"]) == (False, True)
    page = await read(bench, session, since_index=page["last_index"])
    assert (page["completed"], page["more"], page["final_response"]) == (True, False, "x")


async def test_a_running_turn_of_a_session_without_an_actor_is_not_over(bench: Bench) -> None:
    """As while a server that was restarted recovers its sessions."""
    session = await started(bench, live=False, events=1, status="running")
    await bench.turn(session, None)
    page = await read(bench, session)
    assert (page["completed"], page["final_response"]) == (False, None)


async def test_a_failed_turn_has_its_reason(bench: Bench) -> None:
    session = await started(bench)
    await bench.write(session, "error", message="out of luck")
    await bench.turn(session, "failed", "no")
    assert (await read(bench, session))["error"] == "out of luck"


async def test_an_event_too_large_for_a_client_is_whole_for_an_agent(bench: Bench) -> None:
    session = await started(bench)
    text = "x" * (MAX_EVENT + 1)
    await bench.write(session, text=text, index=99)
    (event,) = (await read(bench, session))["events"]
    assert (event["text"], event["index"]) == (text, 0)


async def test_a_waiting_agent_gets_news_over_a_restart_of_the_other_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await started(bench)
    monkeypatch.setattr(bench.sessions, "leave", lambda *_: None)  # it failed, and comes again
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(read(bench, session, wait_seconds=60))
        await bench.waited.wait()
        await bench.session_registry.session(session.id).kill()
        bench.run(session)
        await bench.write(session, text="again")
        assert texts(await waiting) == ["again"]


async def test_a_session_of_another_tree_is_not_found(bench: Bench) -> None:
    mine = await started(bench)
    for changes in (
        {"id": ids.new_id(ids.SESSION)},
        {"exploration_id": ids.new_id(ids.EXPLORATION)},
        {"root_session_id": ids.new_id(ids.SESSION)},  # another root of a shared tree
    ):
        other = msgspec.structs.replace(mine, **changes)
        with pytest.raises(NotFound, match=f"no session {other.id} in this tree"):
            await read(bench, other)


async def test_a_client_of_the_first_form_sees_the_outcome_beyond_the_page(bench: Bench) -> None:
    """It reads from the start each time, so a long log must not hide the outcome from it."""
    session = await started(bench, events=3)
    await bench.turn(session, "completed", "the answer")
    page = await read(bench, session, bare=True, max_events=2)
    assert (page["completed"], page["failed"]) == (True, False)
    assert texts(page) == ["the answer"]
