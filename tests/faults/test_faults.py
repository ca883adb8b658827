"""The rest of the fault list: container, links, disk, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sqlite3
import time

import pytest

from oubliette.runtime.containers.process import procfs
from oubliette.runtime.files.home import DATABASE
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, ToolFailed
from tests.faults.here import Here
from tests.faults.history import check_log, check_nothing_left, check_stopped, texts
from tests.faults.load import Load
from tests.faults.readiness import ready
from tests.own_time import OwnTime

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------------- the container


async def test_a_container_that_is_killed_is_told_to_both_sides_within_two_seconds(server):
    """Its agents failed, calls cancelled, resumed on demand."""
    await server.start()
    async with Here(server) as caller:
        idle = await caller.spawn("remember colour green")
        await caller.turns_done(idle)
        waiting = await caller.spawn('call tester_approve {"what": "a refund"}')
        asked = await caller.event("caller_tool_request", session_id=waiting)
        (host,) = server.containers().values()
        own = OwnTime()
        procfs.send_signal(host, signal.SIGKILL)
        settled = await caller.event("caller_tool_settled", request_id=asked["request_id"])
        for session_id in (idle, waiting):
            await caller.event("status", session_id=session_id, status="failed")
        assert own.seconds() < 2.0
        assert settled["outcome"] == "cancelled"
        assert "container lost" in settled["error"]
        for session_id in (idle, waiting):
            status, reason = await caller.status(session_id)
            assert status == "failed"
            assert "container lost" in (reason or "")
            assert server.agents(session_id) == []
        answer = await caller.call("session_message", session_id=idle, message="recall colour")
        assert answer["resumed"]
        assert (await caller.turns_done(idle))["final_response"] == "green"
        check_nothing_left(server)


async def test_agents_of_sessions_without_a_turn_come_back_with_their_next_message(server):
    """However the record of the session was left, nothing starts for it with the server."""
    await server.start()
    async with Here(server) as caller:
        idle = {
            name: await caller.spawn("remember colour green")
            for name in ("as it is", "without a process", "created", "neither")
        }
        for session in idle.values():
            await caller.turns_done(session)
        (host,) = server.containers().values()
        await server.kill()
        procfs.send_signal(host, signal.SIGKILL)
        with contextlib.closing(sqlite3.connect(server.home / DATABASE)) as store, store:
            for change, names in (
                ("'$.process_id', NULL", ("without a process", "neither")),
                ("'$.status', 'created'", ("created", "neither")),
            ):
                store.executemany(
                    f"UPDATE sessions SET data = json_set(data, {change}),"
                    f" status = json_extract(json_set(data, {change}), '$.status') WHERE id = ?",
                    [(idle[name],) for name in names],
                )
        await server.start()
        await caller.listen(after=caller.next)
        for name in ("as it is", "created"):
            await caller.event("status", session_id=idle[name], status="failed")
        for name in ("without a process", "neither"):
            found = await caller.call("session_get", session_id=idle[name])
            assert (found["status"], found["waiting"][0]["kind"]) == ("idle", "message")
        assert server.containers() == {}
        for session in idle.values():
            await caller.call("session_message", session_id=session, message="recall colour")
            assert (await caller.turns_done(session))["final_response"] == "green"
        check_nothing_left(server)


async def test_an_agent_that_is_killed_fails_its_own_session_and_no_other(server):
    """The failure of the thing is a message."""
    await server.start()
    async with Here(server) as caller:
        waiting = await caller.spawn('call tester_approve {"what": "a refund"}')
        await caller.event("caller_tool_request", session_id=waiting)
        other = await caller.spawn("sleep 60")
        await caller.event("status", session_id=other, status="running")
        (agent,) = server.agents(other)
        procfs.send_signal(agent, signal.SIGKILL)
        await caller.event("status", session_id=other, status="failed")
        assert (await caller.status(other))[1] == "the agent was killed by signal 9"
        caller.may.set()
        await caller.turns_done(waiting)
        assert json.loads(texts(await caller.log(waiting))[-1])["structured"] == {
            "approved": "a refund"
        }
        check_nothing_left(server)


async def test_a_container_that_is_frozen_and_thawed_loses_nothing(server):
    """The fault list: SIGSTOP of the container; here a moment of it, in the middle of a turn."""
    await server.start()
    async with Here(server) as caller:
        half = "emit 500 50\n" * 2
        asks = 'call tester_approve {"what": "the rest"}\n'
        session = await caller.spawn(half + asks + half + "say thawed")
        await caller.event("delta", session_id=session)
        (host,) = server.containers().values()
        procfs.send_signal(host, signal.SIGSTOP)
        frozen = await caller.call("session_get", session_id=session)
        assert frozen["status"] == "running"
        procfs.send_signal(host, signal.SIGCONT)
        caller.may.set()
        assert (await caller.turns_done(session))["final_response"] == "thawed"
        events = await caller.log(session)
        check_log(events)
        assert sum(event["type"] == "delta" for event in events) == 2000


# ---------------------------------------------------------------------- links


async def test_a_link_that_is_cut_costs_no_call_and_no_word(server):
    """With backoff; pending calls wait, the client sends the call again."""
    await server.start()
    async with Load(server) as load:
        await load.come_back()
        await load.caller.event("caller_tool_request", tool="approve")
        await server.arm("cut")
        load.back.set()
        await server.arm("cut")
        await load.go_on(1)
        await server.arm("cut")
        await load.finish()


async def test_an_answer_that_is_lost_with_its_link_is_given_again(server):
    """`call_id` makes a call idempotent over a reconnect."""
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn('call tester_approve {"what": "a refund"}')
        await caller.event("caller_tool_request", session_id=session)
        await server.arm("SessionConnectionActor.LinkReply=raise@1")
        caller.may.set()
        await caller.turns_done(session)
        events = await caller.log(session)
        assert json.loads(texts(events)[-1])["structured"] == {"approved": "a refund"}
        check_log(events)
        assert "SessionConnectionActor.LinkReply" in server.log()


@pytest.mark.whole
async def test_the_time_of_a_call_begins_again_with_a_new_server(server):
    """Its caller could not answer while there was none, however long that was."""
    await server.start(settings={"sessions.caller_tool_timeout_seconds": 1.0})
    async with Here(server) as caller:
        session = await caller.spawn('call tester_approve {"what": "a refund"}')
        asked = await caller.event("caller_tool_request", session_id=session)
        await server.kill()
        await server.start(settings={"sessions.caller_tool_timeout_seconds": 30.0})
        await caller.listen(after=caller.next)
        await asyncio.sleep(max(0.0, asked["deadline"] + 0.5 - time.time()))
        caller.may.set()
        await caller.turns_done(session)
        events = await caller.log(session)
        assert json.loads(texts(events)[-1])["structured"] == {"approved": "a refund"}
        check_log(events)


async def test_a_call_whose_actor_fails_is_settled_once_and_the_agent_goes_on(server):
    """The session sees Down, settles once; the agent lives."""
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn('call tester_approve {"what": "a refund"}\nsay I go on')
        asked = await caller.event("caller_tool_request", session_id=session)
        await server.arm("fail CallerRequestActor")
        page = await caller.turns_done(session)
        assert page["final_response"] == "I go on"
        events = await caller.log(session)
        check_log(events)
        assert json.loads(texts(events)[0])["is_error"]
        caller.may.set()
        with pytest.raises(ToolFailed, match="not found or already resolved"):
            await caller.call(
                "caller_tool_response",
                session_id=session,
                request_id=asked["request_id"],
                result={"late": True},
            )


# ---------------------------------------------------------------------- the disk


def limit_files(server: ServerProcess, size: int | None) -> None:
    """Let no file of the server grow beyond `size` bytes, as a full disk would."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


@pytest.mark.whole
async def test_a_full_disk_holds_everything_back_and_loses_nothing(server):
    """Writer pauses, /ready 503, writes refused, nothing unstored is told."""
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn("emit 200 500\nsleep 0.1\n" * 12 + "say done")
        await caller.event("delta", session_id=session)
        wal = server.home / "oubliette.db-wal"
        limit_files(server, wal.stat().st_size + 20_000)
        with pytest.raises(ToolFailed, match="nothing can be stored"):
            await caller.call("project_create", name="too much", init_git=False)
        status, body = await ready(server)
        assert status == 503
        assert "store" in body
        told = [event["index"] for event in caller.told if event["session_id"] == session]
        stored = server.query("SELECT max(idx) FROM events WHERE session_id = ?", session)
        assert max(told) <= stored[0][0]
        assert len(await caller.log(session)) == stored[0][0] + 1  # reading goes on
        limit_files(server, None)
        assert (await caller.turns_done(session))["final_response"] == "done"
        assert (await ready(server))[0] == 200
        events = await caller.log(session)
        check_log(events)
        assert sum(event["type"] == "delta" for event in events) == 2400
        await caller.call("project_create", name="enough", init_git=False)


@pytest.mark.whole
async def test_a_server_killed_while_the_disk_is_full_comes_back_when_it_is_not(server):
    """Both at once."""
    await server.start()
    async with Load(server) as load:
        await load.come_back()
        limit_files(server, (server.home / "oubliette.db-wal").stat().st_size)
        async with asyncio.timeout(5):
            while (await ready(server))[0] != 503:
                await asyncio.sleep(0.02)  # the next commit fails
        await server.kill()
        await server.start()
        await load.come_back()
        await load.finish()


@pytest.mark.whole
async def test_one_failed_write_is_tried_again_and_nobody_hears_of_it(server):
    """An I/O error that goes by itself: the batch is written again, in order, once."""
    await server.start()
    async with Load(server, seconds=0.4) as load:
        await load.come_back()
        await server.arm("store.commit_io=enospc@3")
        await load.finish()


# ---------------------------------------------------------------------- the stop


async def test_sigterm_ends_agents_and_listeners_in_order_within_ten_seconds(server):
    """Listeners are told `server stopping`, exit code 0."""
    await server.start()
    async with Here(server) as caller:
        busy = await caller.spawn('call tester_approve {"what": "a refund"}')
        asleep = await caller.spawn("sleep 60")
        await caller.event("caller_tool_request", session_id=busy)
        await caller.event("status", session_id=asleep, status="running")
        own = OwnTime()
        server.signal(signal.SIGTERM)
        assert await caller.listener_ended() == "server stopping"
        assert await server.ended(10) == 0
        assert own.seconds() < 10
        check_stopped(server)
        await server.start()
        await caller.listen(after=caller.next)
        for session_id in (busy, asleep):
            status, reason = await caller.status(session_id)
            assert (status, reason) == ("completed", "the server stopped")
            check_log(await caller.log(session_id))
        answer = await caller.call("session_message", session_id=asleep, message="say awake")
        assert answer["resumed"]
        assert (await caller.turns_done(asleep))["final_response"] == "awake"


@pytest.mark.whole
async def test_sigterm_with_on_stop_keep_leaves_agents_to_the_next_server(server):
    """`server.on_stop = keep`: the next start attaches again, and the turn ends."""
    keep = {"server.on_stop": "keep"}
    await server.start(settings=keep)
    async with Load(server) as load:
        await load.come_back()
        before = server.containers()
        assert await server.stop() == 0
        assert server.containers() == before
        await server.start()
        await load.come_back()
        await load.finish()


@pytest.mark.parametrize("options", [(), ("--on-stop", "end")], ids=["unasked", "end"])
async def test_agents_live_on_over_a_restart_unless_the_command_line_says_otherwise(
    server, options
):
    """What a service manager does: SIGTERM, then a new server on the same home."""
    await server.start(settings={"server.on_stop": None}, options=options)
    async with Here(server) as caller:
        session = await caller.spawn("say begun\nsleep 600")
        await caller.event("message", session_id=session)
        agents = server.agents(session)
        assert await server.stop() == 0
        kept = [] if options else agents
        assert server.agents(session) == kept
        await server.start()
        status, reason = await caller.status(session)
        expected = ("running", None) if not options else ("completed", "the server stopped")
        assert (status, reason) == expected


@pytest.mark.whole
async def test_a_part_that_fails_for_good_ends_the_server_and_keeps_the_agents(server):
    """A supervisor that gives up has nobody above it: the next server takes over."""
    await server.start()
    async with Load(server) as load:
        await load.come_back()
        await server.arm("fail Supervisor")
        assert await server.ended() == 1
        assert "the server could not go on" in server.log()
        await server.start()
        await load.come_back()
        await load.finish()


# ---------------------------------------------------------------------- permissions


@pytest.mark.whole
@pytest.mark.parametrize("moment", ["before the deadline", "before the agent is told"])
async def test_a_permission_that_nobody_gives_is_denied_over_a_crash(server, moment):
    """Denied at the deadline, the old one; the agent hears of it once."""
    await server.start(settings={"sessions.permission_timeout_seconds": 1.0})
    async with Here(server) as caller:
        session = await caller.spawn("ask may I?\nsay asked")
        asked = await caller.event("permission_request", session_id=session)
        if moment == "before the agent is told":
            await server.arm("AgentProcessActor.StdinFrame=kill@1")
            await server.ended()
        else:
            await server.kill()
        await server.start(settings={"sessions.permission_timeout_seconds": 30.0})
        page = await caller.turns_done(session, wait=5.0)
        assert page["final_response"] == "asked"
        events = await caller.log(session)
        check_log(events)
        denied = [event for event in events if event["type"] == "permission_settled"]
        assert [event["decision"] for event in denied] == ["deny"]
        assert denied[0]["ts"] >= asked["deadline"] - 0.1
        assert texts(events) == ["deny", "asked"]


@pytest.mark.whole
async def test_an_agent_left_over_from_a_crash_at_the_end_of_its_session_is_ended(server):
    """Nothing is orphaned: the end was stored, and the server killed before the agent was."""
    await server.start(settings={"sessions.idle_timeout_seconds": 0.5})
    async with Here(server) as caller:
        keeper = await caller.spawn("sleep 5")
        # Before the session is there: a busy machine may need longer than its idle time for this
        await server.arm("AgentProcessActor.EndAgent=kill@1")
        session = await caller.spawn("say idle")
        assert await server.ended() == -9
        ((status,),) = server.query("SELECT status FROM sessions WHERE id = ?", session)
        assert status == "timed_out"
        (agent,) = server.agents(session)
        await server.start()
        async with asyncio.timeout(10):
            await procfs.ended(agent)
        await caller.turns_done(keeper)
        check_nothing_left(server)


@pytest.mark.whole
@pytest.mark.parametrize("fault", ["the server", "TreeActor"])
async def test_an_agent_that_waits_for_its_child_holds_no_place_after_a_restart(server, fault):
    """A waiting parent never blocks its children; the count is made anew."""
    await server.start(settings={"trees.max_agents_at_once": 1})
    async with Here(server) as caller:
        leaf = json.dumps({"message": "say leaf"})
        child = json.dumps({"message": f"sleep 1.2\ncall session_message {leaf}\nsay child"})
        session = await caller.spawn(f"call session_message {child}")
        first = await caller.event("status", status="running")
        await caller.event("status", after=caller.events.index(first) + 1, status="running")
        if fault == "the server":
            await server.kill()
            await server.start(settings={"trees.max_agents_at_once": 1})
            await caller.listen(after=caller.next)
        else:
            await server.arm(f"fail {fault}")
        await caller.turns_done(session)
        said = [event["text"] for event in caller.of("message")]
        assert "leaf" in said, said
        assert json.loads(texts(await caller.log(session))[-1])["structured"]["result"] == "child"


async def test_a_caller_has_time_to_come_back_after_a_restart(server):
    """A call that an agent makes before its caller has come back waits for it."""
    await server.start()
    async with Here(server) as caller:
        caller.may.set()
        session = await caller.spawn('sleep 0.6\ncall tester_approve {"what": "a refund"}')
        await caller.event("status", session_id=session, status="running")
        await server.kill()
        await server.start()
        while not server.query("SELECT 1 FROM caller_requests WHERE session_id = ?", session):
            async with HttpCaller(server.url, server.token("admin")) as other:
                await other.call("session_events", session_id=session, wait_seconds=1)
        await caller.listen(after=caller.next)
        await caller.turns_done(session)
        assert json.loads(texts(await caller.log(session))[-1])["structured"] == {
            "approved": "a refund"
        }
