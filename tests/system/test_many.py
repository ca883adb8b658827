"""Many calls, many sessions, a long wait."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

from tests.own_time import OwnTime

pytestmark = pytest.mark.anyio

SOAK = bool(os.environ.get("OUBLIETTE_SOAK"))
SESSIONS = 200
SETTINGS = {
    "sessions.caller_tool_timeout_seconds": 60.0,  # the default, said aloud
    "callers.max_calls_in_flight": 1000,
    "callers.calls_per_second": 100_000,
}
LATE = 45.0


class Late:
    """A call that is answered after 45 s, while the other tests of this module go on."""

    def __init__(self, site, token) -> None:
        self.asked = asyncio.Event()
        self.caller = site.caller(
            "http-auto", token=token, caller_id="late", tools={"think": self.think}
        )
        self.agent = None

    async def think(self) -> str:
        """Think for a while."""
        self.asked.set()
        await asyncio.sleep(LATE)
        return "at last"


@pytest.fixture(scope="module", autouse=True)
async def late(shared_site):
    """Begins with the first test of the module."""
    late = Late(shared_site, shared_site.principal())
    async with late.caller as caller:
        await caller.listen()
        late.agent = await shared_site.spawn(caller, "call late_think {}")
        shared_site.agents.remove(late.agent)  # not to be ended with the first test
        async with asyncio.timeout(20):
            await late.asked.wait()
        yield late


@pytest.mark.whole
async def test_an_answer_after_45_seconds_arrives(site, late):
    """With the default timeout of 60 s."""
    site.agents.append(late.agent)
    outcome = await late.agent.outcome(timeout=LATE + 10)
    assert not outcome["is_error"]
    assert outcome["text"] == "at last"
    assert LATE * 1000 <= outcome["elapsed_ms"] < 59_000


test_an_answer_after_45_seconds_arrives.runs_last = True


@pytest.mark.whole
async def test_a_thousand_calls_in_sequence_are_neither_lost_nor_misrouted(site):
    """`It is done when`: the whole path, with a second session calling meanwhile."""
    counts = {}

    def count(who: str) -> int:
        """Count the calls of one."""
        counts[who] = counts.get(who, 0) + 1
        return counts[who]

    async with site.caller("http-auto", tools={"count": count}) as caller:
        await caller.listen()
        one = await site.spawn(caller, 'repeat 1000 call myapp_count {"who": "one"}')
        two = await site.spawn(caller, 'repeat 100 call myapp_count {"who": "two"}')
        outcomes = [await one.outcome(timeout=55), await two.outcome(timeout=55)]
        assert [(o["count"], o["errors"]) for o in outcomes] == [(1000, 0), (100, 0)]
        assert counts == {"one": 1000, "two": 100}
        requests = caller.of("caller_tool_request")
        assert len({event["request_id"] for event in requests}) == len(requests) == 1100
        by_session = {agent.session_id: agent for agent in (one, two)}
        for event in requests:
            expected = "one" if by_session[event["session_id"]] is one else "two"
            assert event["arguments"] == {"who": expected}


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_two_hundred_sessions_each_with_a_pending_call_are_answered_in_any_order(site):
    """`It is done when`: no thread per session, and each gets the answer that is its own."""
    tasks = Path(f"/proc/{site.server.pid}/task")
    async with site.caller("http-auto", tools={"who": lambda me: me}, answers=False) as caller:
        await caller.listen()
        threads = len(list(tasks.iterdir()))
        agents = []
        for start in range(0, SESSIONS, 8):  # as many at once as a small machine starts in time
            more = [
                await site.spawn(caller, f'call myapp_who {{"me": {n}}}')
                for n in range(start, start + 8)
            ]
            agents += more
            await asyncio.gather(*(agent.event("caller_tool_request") for agent in more))
        async with asyncio.timeout(10):
            while len(caller.of("caller_tool_request")) < SESSIONS:
                await caller.event(after=len(caller.events))
        # Pools of a fixed size may have filled up meanwhile (their threads start on demand).
        assert len(list(tasks.iterdir())) <= threads + 10
        events = random.Random(6).sample(caller.of("caller_tool_request"), SESSIONS)
        for event in events:
            await caller.call(
                "caller_tool_response",
                session_id=event["session_id"],
                request_id=event["request_id"],
                result=f"{event['session_id']} {event['arguments']['me']}",
            )
        outcomes = await asyncio.gather(*(agent.outcome(timeout=60) for agent in agents))
        assert [outcome["text"] for outcome in outcomes] == [
            f"{agent.session_id} {n}" for n, agent in enumerate(agents)
        ]


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_two_sessions_whose_agents_connect_late_and_in_the_other_order_get_their_own_tools(
    site,
):
    """The flaw of first in, first out pairing."""
    token = site.principal()
    async with (
        site.caller("http-auto", token=token, caller_id="ann", tools={"a": lambda: "ann"}) as ann,
        site.caller("http-auto", token=token, caller_id="bob", tools={"b": lambda: "bob"}) as bob,
    ):
        await ann.listen()
        await bob.listen()

        async def once(n: int) -> None:
            first = await site.spawn(ann, "say ready")
            second = await site.spawn(bob, "say ready")
            await asyncio.gather(first.turn(), second.turn())
            # Both links wait in the relay now; the agents connect with their first call.
            for agent, mine, theirs in ((second, "bob_b", "ann_a"), (first, "ann_a", "bob_b")):
                await agent.say(f"tools\ncall {mine} {{}}\ncall {theirs} {{}}")
                tools, own, other = await agent.turn(timeout=30)
                assert mine in json.loads(tools), n
                assert theirs not in json.loads(tools), n
                assert json.loads(own)["text"] == mine[:3], n
                assert json.loads(other)["is_error"], n
            assert (await first.get())["project_id"] == (await second.get())["project_id"]
            await asyncio.gather(first.end(), second.end())

        own = OwnTime()
        for start in range(0, 50, 5):
            await asyncio.gather(*(once(n) for n in range(start, start + 5)))
        assert own.seconds() < 150
    assert len({event["session_id"] for event in ann.of("caller_tool_request")}) == 50
    assert len({event["session_id"] for event in bob.of("caller_tool_request")}) == 50
