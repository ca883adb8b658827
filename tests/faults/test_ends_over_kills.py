"""Ends of sessions over a kill of the server: what was told to end ends, and is no failure."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.callers import ToolFailed
from tests.faults.here import Here
from tests.faults.history import BROKEN, check_log, texts

pytestmark = pytest.mark.anyio

HEARD = [
    "AgentProcessActor.EndAgent",
    "AgentProcessActor._Ended",
    "SessionActor.AgentGone",
    "SessionActor.ResourcesReleased",
]
"""Where the server is killed after a session was told to end."""


async def rested(caller: Here, session: str) -> dict:
    """The session, once it has come to rest."""
    last = -1
    while True:
        page = await caller.call(
            "session_events", session_id=session, since_index=last, wait_seconds=5
        )
        found = await caller.call("session_get", session_id=session)
        if found["status"] in {"completed", "failed", "timed_out"}:
            return found
        last = page["last_index"]


@pytest.mark.parametrize(
    "point", [HEARD[0], *(pytest.param(each, marks=pytest.mark.whole) for each in HEARD[1:])]
)
async def test_an_end_that_a_kill_interrupts_is_an_end_and_no_failure(server, point):
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn("say hello")
        await caller.turns_done(session)
        await server.arm(f"{point}=kill@1")
        with contextlib.suppress(*BROKEN):
            await caller.call("session_end", session_id=session)
        assert await server.ended() == -9
        await server.start()
        async with asyncio.timeout(20):
            found = await rested(caller, session)
        assert (found["status"], found["status_reason"]) == ("completed", "session_end")
        with pytest.raises(ToolFailed, match="was ended"):
            await caller.call("session_message", session_id=session, message="say more")
        check_log(await caller.log(session))
        assert server.agents(session) == []


async def test_an_end_that_was_answered_holds_whenever_it_is_asked_for(server):
    """From the first moment of a server on, which takes its sessions over one by one."""
    await server.start()
    async with Here(server) as caller:
        sessions = [await caller.spawn("say hello") for _ in range(8)]
        for session in sessions:
            await caller.turns_done(session)
        await server.kill()
        await server.start()
        await asyncio.gather(*(caller.call("session_end", session_id=each) for each in sessions))
        await server.kill()
        kept = server.query("SELECT live, ended_by FROM sessions")
        assert kept == [(0, "session_end")] * len(sessions)


async def test_how_an_agent_ended_is_kept_until_it_is_in_the_log(server):
    """The host forgets neither its end nor its last words before."""
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn("say first\nsleep 1\nsay last\ncrash 3")
        await caller.event("message", text="first")
        await server.arm("store.before_commit=enospc")
        await server.passes("SessionActor.Down")
        await server.kill()
        await server.start()
        async with asyncio.timeout(20):
            found = await rested(caller, session)
        assert found["status_reason"] == "the agent ended with exit code 3"
        assert texts(await caller.log(session))[-1] == "last"
