"""What goes wrong in a container, on every runtime: each says what it was, and passes."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.process import procfs
from tests.callers import ToolFailed
from tests.faults.conftest import settings_of
from tests.faults.here import Here
from tests.faults.history import check_log, check_nothing_left, deltas, texts

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

TURN = 60.0  # seconds
MIB = 1 << 20


def peak_memory(pid: int) -> int:
    """The most that a process has had in memory so far, bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


async def test_an_agent_that_is_killed_in_the_middle_of_a_turn_fails_and_is_resumed(
    any_server: ServerProcess,
) -> None:
    await any_server.start()
    async with Here(any_server) as caller:
        session = await caller.spawn("remember colour green\nsay before\nsleep 60")
        await caller.event("message", session_id=session, text="before", timeout=TURN)
        (agent,) = any_server.agents(session)
        procfs.send_signal(agent, signal.SIGKILL)
        await caller.event("status", session_id=session, status="failed", timeout=TURN)
        assert (await caller.status(session))[1] == "the agent was killed by signal 9"
        (error,) = [e for e in await caller.log(session) if e["type"] == "error"]
        assert (error["signal"], error["exit_code"]) == (9, None)
        before = any_server.containers()
        answer = await caller.call("session_message", session_id=session, message="recall colour")
        assert answer["resumed"]
        assert (await caller.turns_done(session, wait=TURN))["final_response"] == "green"
        assert any_server.containers() == before  # its container had no part in it
        check_log(await caller.log(session))
        check_nothing_left(any_server)


async def test_an_image_that_is_missing_is_named_with_the_remedy(
    engine_server: ServerProcess,
) -> None:
    missing = "localhost/oubliette/no-such-image:1"
    await engine_server.start(settings={"containers.image": missing})
    async with Here(engine_server) as caller:
        with pytest.raises(ToolFailed, match=missing) as failed:
            await caller.call("container_start", project_id=caller.project_id)
        assert "could not be started (image)" in str(failed.value)
        assert "hint:" in str(failed.value)
        session = await caller.spawn("remember colour green\nsay here")
        await caller.event("status", session_id=session, status="failed", timeout=TURN)
        assert missing in str((await caller.status(session))[1])
        told = [e for e in await caller.log(session) if e.get("kind") == "stage"]
        assert [(each["stage"], each["state"]) for each in told][-1] == ("image", "failed")
        assert missing in told[-1]["error"]
        assert told[-1]["remedy"]
        assert engine_server.containers() == {}
        # Where it is there after all, the session goes on.
        await engine_server.kill()
        await engine_server.start(settings=settings_of(engine_server.engine))
        await caller.call("session_message", session_id=session, message="say at last")
        assert (await caller.turns_done(session, wait=TURN))["final_response"] == "at last"
        check_log(await caller.log(session))


GREEDY = "python3 -c 'b = bytearray(512 << 20)'"


async def test_an_agent_that_ends_for_want_of_memory_says_so_with_the_setting(
    engine_server: ServerProcess,
) -> None:
    await engine_server.start(settings={"containers.memory_mb": 160})
    async with Here(engine_server) as caller:
        # What the kernel has chosen is a program of the agent, which does not live on without it.
        session = await caller.spawn(f"exec {GREEDY}; kill -9 $PPID")
        await caller.event("status", session_id=session, status="failed", timeout=TURN)
        reason = str((await caller.status(session))[1])
        assert "the agent was killed by signal 9 (out of memory: " in reason
        assert "ended a process of its container meanwhile; containers.memory_mb is 160:" in reason
        # Another one, which is killed by somebody, did not end of that.
        other = await caller.spawn("exec kill -9 $PPID")
        await caller.event("status", session_id=other, status="failed", timeout=TURN)
        assert (await caller.status(other))[1] == "the agent was killed by signal 9"


async def test_an_agent_waits_until_its_container_has_memory_for_it(
    engine_server: ServerProcess,
) -> None:
    await engine_server.start(
        settings={"containers.memory_mb": 400, "agents.memory": "scripted=250"}
    )
    async with Here(engine_server) as caller:
        first = await caller.spawn("say one")
        await caller.turns_done(first, wait=TURN)
        second = await caller.spawn("say two")
        async with asyncio.timeout(TURN):
            waits: list[dict[str, Any]] = []
            while [each["kind"] for each in waits] != ["place"]:
                waits = (await caller.call("session_get", session_id=second))["waiting"]
        assert "memory in its container" in waits[0]["what"]
        assert not [e for e in await caller.log(second) if e["type"] == "error"]
        await caller.call("session_end", session_id=first)
        assert (await caller.turns_done(second, wait=TURN))["final_response"] == "two"


async def test_processes_that_run_out_are_named_and_the_container_recovers(
    engine_server: ServerProcess,
) -> None:
    await engine_server.start(settings={"containers.pids": 40})
    # Takes each place that comes free, without pause enough for anybody else.
    program = (
        r"import os,time\nwhile 1:\n try: os.fork() or time.sleep(600)"
        r"\n except OSError: time.sleep(0.001)"
    )
    bomb = f"exec python3 -c 'exec(\"{program}\")'"
    async with Here(engine_server) as caller:
        session = await caller.spawn(f"{bomb}\nsay not reached")
        await caller.event("status", session_id=session, status="running", timeout=TURN)
        ((_, host),) = engine_server.containers().items()
        while len(procfs.children(host.pid)) == 0:
            await asyncio.sleep(0.05)
        # Commands say so, while they cannot be run, and other sessions do.
        async with asyncio.timeout(TURN):
            while True:
                try:
                    await caller.call("container_exec", project_id=caller.project_id, command="id")
                except ToolFailed as error:
                    said = str(error)
                    break
                await asyncio.sleep(0.05)
        assert "containers.pids" in said
        reason = ""
        while "containers.pids" not in reason:  # an agent may get the last one, and need more
            other = await caller.spawn("say other")
            await caller.turns_done(other, wait=TURN)
            reason = str((await caller.status(other))[1])
        # The end of the session that took them all gives them back.
        await caller.call("session_end", session_id=session)
        await caller.call("session_message", session_id=other, message="say recovered")
        assert (await caller.turns_done(other, wait=TURN))["final_response"] == "recovered"
        done = await caller.call("container_exec", project_id=caller.project_id, command="echo ok")
        assert done["stdout"] == "ok\n"
        assert list(engine_server.containers().values()) == [host]


@pytest.mark.whole
async def test_an_agent_that_floods_its_output_is_held_back_and_nobody_else(
    any_server: ServerProcess,
) -> None:
    """150 MB of events and 100 MB of stderr: memory stays where it was, all of it is kept."""
    await any_server.start()
    async with Here(any_server) as caller:
        calm = await caller.spawn("say calm")
        await caller.turns_done(calm, wait=TURN)
        ((_, host),) = any_server.containers().items()
        before = peak_memory(any_server.pid)
        flood = await caller.spawn(f"stderr {100 * MIB}\n" + "emit 50 1000000\n" * 3 + "say over")
        await caller.event("delta", session_id=flood, timeout=TURN)
        await caller.call("session_message", session_id=calm, message="say still calm")
        assert (await caller.turns_done(calm, wait=TURN))["final_response"] == "still calm"
        assert (await caller.turns_done(flood, wait=TURN))["final_response"] == "over"
        assert peak_memory(any_server.pid) - before < 150 * MIB
        assert peak_memory(host.pid) < 80 * MIB
        rows = any_server.query(
            "SELECT count(*) FROM events WHERE session_id = ? AND type = 'delta'", flood
        )
        assert rows == [(150,)]
        check_nothing_left(any_server)


@pytest.mark.whole
async def test_a_line_without_an_end_ends_its_agent_and_takes_no_memory(
    server: ServerProcess,
) -> None:
    """300 MB without a newline: no protocol of ours, and nothing to wait for."""
    command = '["sh", "-c", "head -c 300000000 /dev/zero | tr \'\\\\0\' x; sleep 600"]'
    await server.start(settings={"acp.command": command, "agents.start_timeout_seconds": 20})
    async with Here(server) as caller:
        calm = await caller.spawn("say calm", agent="scripted")
        await caller.turns_done(calm, wait=TURN)
        before = peak_memory(server.pid)
        flood = await caller.spawn("hello", agent="acp")
        await caller.event("status", session_id=flood, status="failed", timeout=TURN)
        assert await caller.status(flood) != ("failed", None)
        assert peak_memory(server.pid) - before < 150 * MIB
        await caller.call("session_message", session_id=calm, message="say still calm")
        assert (await caller.turns_done(calm, wait=TURN))["final_response"] == "still calm"
        assert texts(await caller.log(calm)) == ["calm", "still calm"]
        assert deltas(await caller.log(flood)) == []
