"""A server whose PostgreSQL goes away while its sessions work, and one that another takes over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.faults.here import Here
from tests.faults.history import check_log, check_nothing_left, check_told, deltas, texts
from tests.faults.readiness import ready
from tests.small_disk import fill, small_disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.fork_server import Zygote
    from tests.postgres import PostgresServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(240),
    pytest.mark.requires("postgres"),
]

SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"
REFUSED = "nothing can be stored|may be stored or not|cannot be read"
HELD = 5.0
"""Seconds for which a request waits for the database before it is refused."""


@pytest.fixture
async def server(own_postgres: PostgresServer, zygote: Zygote) -> AsyncIterator[ServerProcess]:
    settings = {
        "store.database": own_postgres.new_database(),
        # The outage is longer than an answer may take, and is no part of that.
        "sessions.caller_tool_timeout_seconds": 12,
        "sessions.permission_timeout_seconds": 12,
    }
    async with ServerProcess(zygote=zygote, settings=settings) as process:
        await process.start()
        yield process
        print(process.log()[-20_000:])
        if not own_postgres.runs:
            own_postgres.start()  # what the server has left is known to it alone


async def work(caller: Here) -> dict[str, str]:
    """Sessions that are at work: idle, streaming, waiting for the caller, waiting for a child."""
    idle = await caller.spawn("remember colour green")
    await caller.turns_done(idle)
    child = json.dumps({"message": "sleep 2\nsay small"})
    sessions = {
        "idle": idle,
        "streaming": await caller.spawn("emit 50 500\nsleep 0.1\n" * 60 + "say done"),
        "waiting": await caller.spawn('call tester_approve {"what": "a refund"}'),
        "parent": await caller.spawn(f"call session_message {child}"),
        "permission": await caller.spawn("ask may I?\nsay asked"),
    }
    await caller.event("permission_request", session_id=sessions["permission"])
    await caller.event("caller_tool_request", session_id=sessions["waiting"])
    await caller.event("delta", session_id=sessions["streaming"])
    return sessions


async def check_work(caller: Here, sessions: dict[str, str], *, noticed: bool) -> None:
    """All ended as if nothing had happened, and was told once and in order.

    If it was `noticed`, the agent that called a tool may have been told that nothing can be stored.
    """
    asked = await caller.event("permission_request", session_id=sessions["permission"])
    await caller.call(
        "permission_response",
        session_id=asked["session_id"],
        request_id=asked["request_id"],
        decision="allow",
    )
    for session in sessions.values():
        await caller.turns_done(session, wait=40.0)
    await caller.call("session_message", session_id=sessions["idle"], message="recall colour")
    assert (await caller.turns_done(sessions["idle"]))["final_response"] == "green"
    rows = caller.server.query("SELECT id FROM sessions")
    for (session,) in rows:  # a child works on, also if its parent was told of the outage
        await caller.turns_done(session, wait=40.0)
    logs = {session: await caller.log(session) for (session,) in rows}
    for session, log in logs.items():
        check_log(log)
        assert (await caller.status(session)) == ("idle", None), log[-5:]
    said = {key: texts(logs[session]) for key, session in sessions.items()}
    assert said["permission"] == ["allow", "asked"]
    assert said["streaming"][-1] == "done"
    assert deltas(logs[sessions["streaming"]]) == list(range(50)) * 60
    assert json.loads(said["waiting"][-1])["structured"] == {"approved": "a refund"}
    told = '"result": "small"' in said["parent"][-1]
    assert told or (noticed and re.search(REFUSED, said["parent"][-1])), said["parent"]
    last = max(log[-1]["seq"] for log in logs.values())
    if last not in {event["seq"] for event in caller.told}:
        await caller.event(seq=last)  # it is on its way
    check_told(caller, logs)


async def back(server: ServerProcess, seconds: float = 30.0) -> float:
    """The seconds until the server is ready."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while (await ready(server))[0] != 200:
            await asyncio.sleep(0.05)  # nobody tells when it is
    return time.monotonic() - began


@pytest.mark.parametrize("seconds", [2, 14, *([60] if SOAK else [])])
async def test_a_server_waits_for_a_database_that_was_away_and_goes_on_by_itself(
    server, own_postgres, seconds
):
    """Writer pauses, /ready 503, writes refused, nothing is told that is not stored."""
    async with Here(server) as caller:
        sessions = await work(caller)
        own_postgres.stop("immediate")
        ends = time.monotonic() + seconds
        if seconds > HELD:
            with pytest.raises(ToolFailed, match=REFUSED) as refused:
                await caller.call("project_create", name="too much", init_git=False)
            assert refused.value.structured["error"]["code"] == "storage_unavailable"
            status, body = await ready(server)
            assert status == 503
            assert "store" in body
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
        await asyncio.to_thread(own_postgres.start)
        print(f"ready {await back(server):.2f} s after the database")
        caller.may.set()
        await check_work(caller, sessions, noticed=seconds > HELD)
        check_nothing_left(server)
        await caller.call("project_create", name="enough", init_git=False)
    assert await server.stop() == 0


async def test_an_answer_of_a_caller_while_the_database_is_away_may_be_repeated_and_counts_once(
    server, own_postgres
):
    async with Here(server) as caller:
        waiting = await caller.spawn('call tester_approve {"what": "a refund"}')
        asked = await caller.event("caller_tool_request", session_id=waiting)
        answer = {
            "session_id": waiting,
            "request_id": asked["request_id"],
            "result": {"approved": "twice"},
        }
        own_postgres.stop("immediate")
        with pytest.raises(ToolFailed) as refused:
            await caller.call("caller_tool_response", **answer)
        assert refused.value.structured["error"]["code"] == "storage_unavailable"
        await asyncio.to_thread(own_postgres.start)
        await back(server)
        with contextlib.suppress(ToolFailed):  # the first one was kept, and is stored by now
            await caller.call("caller_tool_response", **answer)
        await caller.turns_done(waiting)
        log = await caller.log(waiting)
        assert json.loads(texts(log)[-1])["structured"] == {"approved": "twice"}
        check_log(log)


@pytest.mark.parametrize("address", ["both", "taken over"])
async def test_a_server_goes_on_with_the_standby_that_takes_over(zygote, own_postgres, address):
    """Synchronous, so the standby has all that was acknowledged."""
    url = own_postgres.new_database()
    with own_postgres.standby() as standby:
        if address == "both":
            url = own_postgres.url_with(standby, url)
        async with ServerProcess(zygote=zygote, settings={"store.database": url}) as server:
            await server.start()
            async with Here(server) as caller:
                sessions = await work(caller)
                own_postgres.kill()
                await asyncio.sleep(1.0)  # what takes time here is the outage
                if address == "taken over":
                    await asyncio.to_thread(own_postgres.give_address_to, standby)
                await asyncio.to_thread(standby.promote)
                print(f"ready {await back(server):.2f} s after the promotion")
                caller.may.set()
                await check_work(caller, sessions, noticed=False)
                check_nothing_left(server)
            assert await server.stop() == 0
            print(server.log()[-20_000:])


@pytest.mark.requires("root")
async def test_a_full_disk_of_the_database_holds_everything_back_and_loses_nothing(
    zygote, own_postgres
):
    """As one with SQLite: nothing unstored is told, reading goes on, and then all goes on."""
    with small_disk(own_postgres.folder / "disk", 32, own_postgres.folder) as disk:
        own_postgres.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        url = own_postgres.new_database()
        own_postgres.execute("ALTER DATABASE t1 SET TABLESPACE small")
        async with ServerProcess(zygote=zygote, settings={"store.database": url}) as server:
            await server.start()
            async with Here(server) as caller:
                session = await caller.spawn("emit 200 500\nsleep 0.1\n" * 20 + "say done")
                await caller.event("delta", session_id=session)
                ballast = fill(disk)
                async with asyncio.timeout(60):
                    while (await ready(server))[0] != 503:
                        await asyncio.sleep(0.02)  # the next page of a table does not fit
                with pytest.raises(
                    ToolFailed, match="nothing can be stored.*disk of the database is full"
                ):
                    await caller.call("project_create", name="too much", init_git=False)
                told = [each["index"] for each in caller.told if each["session_id"] == session]
                stored = await caller.log(session)
                assert max(told) <= stored[-1]["index"]
                ballast.unlink()
                await back(server)
                assert (await caller.turns_done(session))["final_response"] == "done"
                events = await caller.log(session)
                check_log(events)
                assert deltas(events) == list(range(200)) * 20
                await caller.call("project_create", name="enough", init_git=False)
            print(server.log()[-20_000:])
        own_postgres.stop("immediate")  # the disk is free then


@pytest.mark.parametrize("how", ["away", "hangs"])
async def test_a_server_that_is_stopped_while_its_database_does_not_answer_leaves_no_agent(
    server, own_postgres, how
):
    async with Here(server) as caller:
        session = await caller.spawn("sleep 600")
        await caller.event("status", session_id=session, status="running")
        assert len(server.agents(session)) == 1
        own_postgres.stop("immediate") if how == "away" else own_postgres.pause()
        began = time.monotonic()
        try:
            server.signal(signal.SIGTERM)
            await server.ended(60)
        finally:
            if how == "hangs":
                own_postgres.resume()
        print(f"it ended {time.monotonic() - began:.1f} s after SIGTERM")
        assert server.agents(session) == []


async def test_new_callers_are_refused_while_the_database_is_away_and_served_afterwards(
    server, own_postgres
):
    """Each is refused alone: they use up no limit that others share."""
    names = [f"new-{number}" for number in range(12)]
    async with Here(server) as caller:
        own_postgres.stop("immediate")

        async def listening() -> list[object]:
            asked = [caller.call("caller_listen", caller_id=each, max_seconds=0) for each in names]
            return await asyncio.gather(*asked, return_exceptions=True)

        for _ in range(2):
            for refused in await listening():
                assert isinstance(refused, ToolFailed)
                assert re.search(f"{REFUSED}|the database does not answer", str(refused))
        await asyncio.to_thread(own_postgres.start)
        await back(server)
        async with asyncio.timeout(10):
            while [each for each in await listening() if isinstance(each, ToolFailed)]:
                await asyncio.sleep(0.2)  # nobody tells when they are subscribed
    assert await server.stop() == 0
