"""Callers over nodes: two Systems with stores of their own, on one real database."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.caller.messages import (
    CallerState,
    CloseListener,
    EventBatch,
    GetCaller,
    ListenerOpened,
    NextEvents,
    OpenListener,
)
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.messages import CallerDisconnected, CallerSeen, OpenCaller, TrackRequest
from oubliette.actors.store.actor import StoreActor, Transact
from oubliette.config.schema import CallersConfig
from oubliette.kit import Actor, System, handles
from oubliette.records import CallerTool, Event
from oubliette.runtime.store.operations import AppendEvents, PutCallerRequest, PutSession
from oubliette.runtime.store.reader import Reader
from tests.unit.runtime.store import samples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from oubliette.kit import Ref

pytestmark = [pytest.mark.anyio, pytest.mark.requires("postgres")]

WAIT = 20.0
ADD = (CallerTool(name="add", description="Add."),)
SUBTRACT = (CallerTool(name="subtract", description="Subtract."),)


class Waiting(Actor):
    """An actor that waits for a caller's answer."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    @handles(CallerDisconnected)
    def _lost(self, message: CallerDisconnected) -> None:
        self._told.append(message.reason)


class CallerNode:
    """The callers of one node, and what the tests do there."""

    def __init__(
        self, system: System, store: Ref, callers: Ref, fence, board, unsteady: list[float]
    ) -> None:
        self.system = system
        self.store = store
        self.callers = callers
        self.fence = fence
        self.board = board
        self.unsteady = unsteady
        """Seconds for which the ends of other nodes' leases prove nothing, with this node."""
        self.requests = 0

    async def caller(self) -> Ref:
        return self.system.ref(await self.callers.ask(OpenCaller(principal="p", caller_id="me")))

    async def open(self, listener: str, **given: Any) -> ListenerOpened:
        return await (await self.caller()).ask(OpenListener(listener_id=listener, **given))

    async def close(self, listener: str, *, orderly: bool = False) -> None:
        (await self.caller()).tell(CloseListener(listener_id=listener, orderly=orderly))

    async def next(self, listener: str, after: int = 0, wait: float = WAIT) -> EventBatch:
        message = NextEvents(listener_id=listener, after=after, wait_seconds=wait)
        return await (await self.caller()).ask(message, timeout=WAIT)

    async def state(self) -> CallerState:
        return await (await self.caller()).ask(GetCaller())

    async def tools(self, project_id: str) -> tuple[CallerTool, ...] | None:
        """The tools of a session of a project that a key bound to it has started."""
        asked = GetCaller(project_id=project_id, restricted=True)
        return (await (await self.caller()).ask(asked)).tools

    async def until(self, condition: Callable[[CallerState], bool]) -> CallerState:
        """Ask for the state until it is so; nobody tells."""
        async with asyncio.timeout(WAIT):
            while not condition(state := await self.state()):
                await asyncio.sleep(0.02)
        return state

    async def track(self) -> list[str]:
        """Let a request wait for the caller; return what it is told."""
        told: list[str] = []
        self.requests += 1
        name = f"request-{self.requests}"
        self.system.spawn(Waiting, told, name=name)
        (await self.caller()).tell(TrackRequest(request_id=name, session_id="s", reply_to=name))
        await self.state()
        return told

    async def commit(self, index: int, kind: str = "caller_tool_request") -> None:
        event = Event(
            session_id="s",
            index=index,
            ts=0.0,
            type=kind,
            data={"request_id": f"req{index}"},
            principal="p",
            caller_id="me",
        )
        request = samples.request(
            index, session_id="s", principal="p", caller_id="me", event_index=index
        )
        ops = (AppendEvents(events=(event,)), PutCallerRequest(request))
        await self.store.ask(Transact(ops=ops))


@contextlib.asynccontextmanager
async def node(url: str, name: str, **settings: Any) -> AsyncIterator[CallerNode]:
    from oubliette.node.caller_board import SharedCallerBoard
    from oubliette.runtime.store.postgres.cluster import nodes
    from oubliette.runtime.store.postgres.cluster.node_records import NodeOffer
    from oubliette.runtime.store.postgres.control_thread import ControlThread
    from oubliette.runtime.store.postgres.database import PostgresDatabase
    from oubliette.runtime.store.postgres.fence import NodeFence
    from oubliette.runtime.store.postgres.notices import Notices

    async with contextlib.AsyncExitStack() as stack:
        database = await asyncio.to_thread(PostgresDatabase, url)
        control = ControlThread(url, name)
        control.start()
        stack.push_async_callback(asyncio.to_thread, control.close)
        fence = NodeFence(name, await control.run(nodes.take_epoch, name, "", NodeOffer()))
        await control.run(lease, name, 3600.0)
        reader = Reader(database)
        stack.push_async_callback(reader.aclose)
        notices = Notices(url, name)
        notices.start()
        stack.push_async_callback(asyncio.to_thread, notices.close)
        system = await stack.enter_async_context(System(name, roundtrip_messages=True))
        store = system.spawn(StoreActor, database, name="store")
        unsteady = [0.0]
        board = SharedCallerBoard(control, notices, fence, system, unsteady=lambda: max(unsteady))
        board.start()
        config = CallersConfig(**settings)
        callers = system.spawn(CallersActor, store, reader, config, board, name="callers")
        yield CallerNode(system, store, callers, fence, board, unsteady)


def lease(connection, name: str, seconds: float) -> None:
    connection.execute(
        "UPDATE nodes SET lease_until = clock_timestamp() + %s * interval '1 second'"
        " WHERE name = %s",
        (seconds, name),
    )


def execute(url: str, sql: str, *parameters: object) -> list:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def set_lease(url: str, name: str, seconds: float) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        lease(connection, name, seconds)


async def told(reasons: list[str], seconds: float = WAIT) -> str:
    async with asyncio.timeout(seconds):
        while not reasons:
            await asyncio.sleep(0.01)
    return reasons[0]


# ---------------------------------------------------------------- the newest provider
async def test_a_newer_provider_on_another_node_supersedes_the_older_one(postgres_url) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        await a.open("first")
        waits = asyncio.ensure_future(a.next("first"))
        await asyncio.sleep(0)
        begun = time.monotonic()
        await b.open("second")
        assert (await waits).ended == "superseded"
        assert time.monotonic() - begun < 1
        waits = asyncio.ensure_future(b.next("second"))
        await a.open("third")
        assert (await waits).ended == "superseded"
        state = await b.state()
        assert state.present
        assert state.provided


async def test_a_provider_that_was_superseded_between_two_asks_is_told_so_at_the_next(
    postgres_url,
) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        await a.open("first")
        await b.open("second")
        await a.state()  # by now it knows
        assert (await a.next("first")).ended == "superseded"
        assert (await a.next("first")).ended == "unknown listener"


async def test_of_providers_that_open_at_once_on_both_nodes_one_remains_on_both(
    postgres_url,
) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        for turn in range(10):
            await asyncio.gather(a.open(f"a{turn}"), b.open(f"b{turn}"))
            asks = [
                asyncio.ensure_future(each.next(f"{name}{turn}"))
                for name, each in (("a", a), ("b", b))
            ]
            done, left = await asyncio.wait(asks, timeout=WAIT, return_when=asyncio.FIRST_COMPLETED)
            assert [ask.result().ended for ask in done] == ["superseded"]
            (newest,) = execute(postgres_url, "SELECT node FROM listeners")
            assert asks["ab".index(newest[0])] in left
            for ask in left:
                ask.cancel()


async def test_observers_supersede_nobody_and_make_nobody_present(postgres_url) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        await a.open("provider")
        waits = asyncio.ensure_future(a.next("provider"))
        await b.open("observer", mode="observe")
        await a.commit(0)
        assert [event.index for event in (await waits).events] == [0]
        await a.close("provider")
        assert not (await b.until(lambda state: not state.present)).provided


# ---------------------------------------------------------------- the reach of keys
async def test_a_bound_key_on_one_node_takes_over_no_wider_key_on_another(postgres_url) -> None:
    """Steps: a wide provider on a; a narrow one on b, and a newer narrow one on a; that one ends."""
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        session = msgspec.structs.replace(samples.session(project_id="proj"), id="s")
        await a.store.ask(Transact(ops=(PutSession(session),)))
        await a.open("wide", tools=ADD)
        await b.open("narrow", project_id="proj", tools=SUBTRACT)
        for each in (a, b):
            assert await each.tools("proj") == SUBTRACT
            assert await each.tools("other") == ADD
        wide = asyncio.ensure_future(a.next("wide"))
        await b.commit(0)
        assert [event.index for event in (await b.next("narrow")).events] == [0]
        ends = asyncio.ensure_future(b.next("narrow", after=10**9))
        await a.open("newer", project_id="proj")
        assert (await ends).ended == "superseded"
        assert not wide.done()
        await a.close("newer")
        await b.commit(1)
        assert [event.index for event in (await wide).events] == [1]


async def test_a_wider_key_on_one_node_takes_over_no_bound_key_on_another(postgres_url) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        await a.open("narrow", project_id="proj", tools=SUBTRACT)
        narrow = asyncio.ensure_future(a.next("narrow"))
        await b.open("wide", tools=ADD)
        await b.open("wider", tools=ADD)
        assert (await a.state()).provided
        assert not narrow.done()
        narrow.cancel()


async def test_a_caller_is_present_on_all_nodes_while_a_key_of_any_reach_listens(
    postgres_url,
) -> None:
    settings = {"stream_grace_seconds": 0.1, "poll_grace_seconds": 0.2}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        await b.caller()
        await a.open("narrow", project_id="proj")
        state = await b.until(lambda state: state.present)
        assert state.provided
        await a.close("narrow")
        assert (await b.until(lambda state: not state.present)).reason == "it disconnected"


# ---------------------------------------------------------------- presence
async def test_a_request_on_another_node_waits_as_long_as_the_stream_and_its_grace(
    postgres_url,
) -> None:
    settings = {"stream_grace_seconds": 0.3}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        await b.caller()  # it knows the caller from before
        await a.open("stream")
        lost = await b.track()
        await asyncio.sleep(0.5)
        assert lost == []
        begun = time.monotonic()
        await a.close("stream")
        assert await told(lost) == "caller me is not connected: it disconnected"
        assert 0.25 < time.monotonic() - begun < 2


async def test_a_caller_that_comes_back_on_another_node_in_time_is_not_lost(postgres_url) -> None:
    settings = {"stream_grace_seconds": 0.5}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        await a.open("stream")
        at_home, elsewhere = await a.track(), await b.track()
        await a.close("stream")
        await b.open("again")
        await asyncio.sleep(1.0)
        assert at_home == elsewhere == []
        await b.close("again")
        assert await told(at_home)
        assert await told(elsewhere)


async def test_a_call_on_one_node_is_a_sign_of_life_on_the_other(postgres_url) -> None:
    async with (
        node(postgres_url, "a", poll_grace_seconds=1.0) as a,
        node(postgres_url, "b", poll_grace_seconds=1.0) as b,
    ):
        assert not (await b.state()).present
        (await a.caller()).tell(CallerSeen())
        await b.until(lambda state: state.present)
        lost = await b.track()
        reason = await told(lost)
        assert reason == "caller me is not connected: it does not listen for events"


async def test_signs_of_life_are_written_only_when_they_extend_presence_considerably(
    postgres_url,
) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        caller = await a.caller()
        for _ in range(100):
            caller.tell(CallerSeen())
        await b.until(lambda state: state.present)
        for _ in range(100):
            caller.tell(CallerSeen())
        await a.state()
        assert execute(postgres_url, "SELECT last_value FROM caller_changes") == [(1,)]


async def test_polls_in_a_row_on_one_node_are_not_written(postgres_url) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        for number in range(20):
            await a.open(f"poll{number}", kind="poll")
            await a.next(f"poll{number}", wait=0)
            await a.close(f"poll{number}", orderly=True)
        assert (await b.state()).present
        assert execute(postgres_url, "SELECT last_value FROM caller_changes") == [(1,)]


async def test_a_poller_that_stays_away_is_lost_on_all_nodes_after_its_grace(
    postgres_url,
) -> None:
    settings = {"poll_grace_seconds": 0.6}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        await a.open("poll", kind="poll")
        lost = await b.track()
        begun = time.monotonic()
        await a.close("poll", orderly=True)
        assert await told(lost) == "caller me is not connected: it stopped listening"
        assert 0.5 < time.monotonic() - begun < 2


# ---------------------------------------------------------------- tools, and what was delivered
@pytest.mark.parametrize("mode", ["provide", "observe"])
@pytest.mark.parametrize("kind", ["stream", "poll"])
async def test_tools_that_are_lent_on_one_node_are_known_on_the_other(
    postgres_url, mode, kind
) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        assert (await b.state()).tools is None
        await a.open("one", mode=mode, kind=kind, tools=ADD)
        assert (await b.until(lambda state: state.tools is not None)).tools == ADD
        await b.open("two", mode=mode, kind=kind, tools=())
        assert (await a.until(lambda state: state.tools != ADD)).tools == ()
        await a.open("three", kind=kind)
        assert (await b.state()).tools == ()


@pytest.mark.parametrize("released", [True, False])
async def test_a_poll_on_another_node_knows_what_may_have_been_delivered_before(
    postgres_url, released
) -> None:
    settings = {"poll_grace_seconds": 0.8}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        await b.caller()
        await a.open("poll", kind="poll")
        await a.commit(0)
        batch = await a.next("poll")
        assert (len(batch.events), batch.redelivered) == (1, ())
        await a.close("poll", orderly=True)
        if released:
            await b.until(lambda state: not state.provided)
        await a.commit(1)
        await b.until(lambda state: state.head > batch.next)
        await b.open("poll2", kind="poll")
        marked: dict[int, bool] = {}
        cursor = 0
        while len(marked) < 2:
            batch = await b.next("poll2", after=cursor)
            cursor = batch.next
            marked |= {event.index: event.seq in batch.redelivered for event in batch.events}
        # Without a word of the other node, it may have delivered everything.
        assert marked == {0: True, 1: not released}


# ---------------------------------------------------------------- ends and faults
async def test_the_callers_of_a_node_that_is_declared_gone_are_lost_after_their_grace(
    postgres_url,
) -> None:
    from oubliette.runtime.store.postgres.cluster import nodes
    from oubliette.runtime.store.postgres.control_connection import control_connection

    settings = {"stream_grace_seconds": 0.3}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        await a.open("stream")
        lost = await b.track()
        execute(
            postgres_url,
            "UPDATE nodes SET steady_since = clock_timestamp() - interval '1 hour'",
        )
        # Later than it would have to be looked at again, so that the notice alone can tell.
        execute(
            postgres_url,
            "UPDATE nodes SET state = 'gone', epoch = epoch + 1 WHERE name = 'a'",
        )
        assert await told(lost, 3.0) == "caller me is not connected: its node has ended"
        with contextlib.closing(control_connection(postgres_url, "test")) as connection:
            nodes.declare_gone(connection, "a", b.fence)


async def test_a_caller_counts_as_absent_once_the_lease_of_its_node_has_ended(
    postgres_url,
) -> None:
    settings = {"stream_grace_seconds": 0.3}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        set_lease(postgres_url, "a", 1.0)
        await a.open("stream")
        lost = await b.track()
        set_lease(postgres_url, "a", 2.0)  # a renewal that nobody is told of
        await asyncio.sleep(1.6)
        assert lost == []
        assert await told(lost) == "caller me is not connected: its node does not answer"
        assert not (await b.state()).provided
        set_lease(postgres_url, "a", 3600.0)
        assert (await b.state()).present


async def test_the_end_of_a_lease_proves_no_absence_while_the_nodes_could_not_renew_theirs(
    postgres_url,
) -> None:
    settings = {"stream_grace_seconds": 0.2}
    async with (
        node(postgres_url, "a", **settings) as a,
        node(postgres_url, "b", **settings) as b,
    ):
        set_lease(postgres_url, "a", 0.3)
        await a.open("stream")
        lost = await b.track()
        b.unsteady.append(1.0)
        await asyncio.sleep(1.3)
        assert lost == []
        b.unsteady.pop()
        assert "its node does not answer" in await told(lost)


async def test_callers_go_on_while_the_database_is_away_and_agree_when_it_is_back(
    own_postgres,
) -> None:
    url = own_postgres.new_database()
    settings = {"stream_grace_seconds": 0.3}
    async with node(url, "a", **settings) as a, node(url, "b", **settings) as b:
        await a.open("stream")
        lost = await b.track()
        own_postgres.stop()
        assert (await b.state()).present
        await a.close("stream")
        assert not (await a.until(lambda state: not state.present)).provided
        own_postgres.start()
        assert await told(lost)
        await b.open("back")
        assert (await a.until(lambda state: state.provided)).present


async def test_a_node_that_ended_its_own_lease_opens_its_providers_again(postgres_url) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        await a.open("stream")
        assert (await b.state()).provided
        set_lease(postgres_url, "a", -1.0)
        set_lease(postgres_url, "a", 3600.0)
        assert (await b.until(lambda state: state.provided)).present
