"""The crash test with real agents in containers: each whose process a new server takes over.

The server is killed at a failpoint in the middle of a call; the agent lives on in its container, and
its turn ends as if nothing had happened. tests/faults/test_crash.py has all the other points, with
the scripted agent.
"""

from __future__ import annotations

import pytest

from oubliette.testing.model_server import ModelServer
from oubliette.testing.server import ServerProcess
from tests.faults.here import Here
from tests.faults.history import check_log
from tests.system.real_agents import AGENTS, KEY, SLOW, Agent, settings_for

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.requires("docker")]

CASES = [
    pytest.param(
        agent, point, id=f"{agent.name}-{point}", marks=pytest.mark.requires(agent.requires)
    )
    for agent in AGENTS
    if agent.requires
    for point in ("session.caller_request@1", "agent.after_start@1")[: 1 + (agent.name == "droid")]
]


@pytest.mark.parametrize(("agent", "point"), CASES)
async def test_a_real_agent_outlives_a_server_that_is_killed_at_a_failpoint(
    zygote, monkeypatch, agent: Agent, point: str
) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    name, _, at = point.partition("@")
    async with (
        ModelServer() as model,
        ServerProcess(zygote=zygote, settings=settings_for("docker", model)) as server,
    ):
        await server.start(failpoints=f"{name}=kill@{at}")
        async with Here(server) as caller:
            call = f'call {agent.prefix}tester_approve {{"what": "a refund"}}'
            session = await caller.spawn(call, agent=agent.name)
            assert await server.ended(SLOW) == -9
            before = server.containers()
            await server.start()
            caller.may.set()
            await caller.listen(after=caller.next)
            page = await caller.turns_done(session, wait=SLOW)
            assert "a refund" in page["final_response"]
            assert server.containers() == before  # one container, the same one
            events = await caller.log(session)
            check_log(events)
            asked = [event for event in events if event["type"] == "caller_tool_request"]
            assert [event["arguments"] for event in asked] == [{"what": "a refund"}]
            ready = [event for event in events if event.get("kind") == "ready"]
            assert len(ready) == 1  # one process, the same one
        print(server.log()[-30_000:])
