"""The crash test: kill -9 of the server at named failpoints and at random.

Under four sessions, one streaming, one waiting for its caller, one for a child, one idle; with
others that come and go. The server may be killed at any moment; agents live on, and
what was acknowledged is there.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.files import home as homes
from tests.faults.here import Here
from tests.faults.load import Load, crash
from tests.selection import core

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"

# Passes are counted from the server's start: the numbers put the crash into the middle of the load.
POINTS = [
    "store.before_commit@60",
    "store.after_commit@8",
    "store.after_commit@75",
    "container.created@2",
    "container.launched@2",
    "container.started@2",
    "agent.before_start@4",
    "agent.after_start@6",
    "session.before_prompt@6",
    "session.after_prompt@3",
    "session.caller_request@1",
    "session.request_settled@1",
    "session.child_spawned@1",
    "session.agent_spoke@40",
    "project.session_recorded@6",
]
MORE_POINTS = [
    "store.before_commit@5",
    "store.before_commit@25",
    "store.after_commit@30",
    "container.created@1",
    "container.started@1",
    "agent.before_start@1",
    "agent.before_start@6",
    "agent.after_start@1",
    "session.before_prompt@1",
    "session.before_prompt@3",
    "session.after_prompt@1",
    "session.after_prompt@6",
    "session.caller_request@2",
    "session.child_spawned@2",
    "session.committed@1",
    "session.committed@90",
    "project.session_recorded@1",
    "project.session_recorded@2",
    "host.line@3",
    "host.line@15",
]
# One of each kind: what containers themselves go through, and what goes on in them. All of the
# others differ in nothing that an engine has to do with.
ENGINE_POINTS = [
    "container.created@2",
    "container.launched@2",
    "agent.after_start@6",
    "session.caller_request@1",
    "session.child_spawned@1",
    "session.agent_spoke@40",
]


# Of the core, one before its agent runs and one in a call.
CORE_POINTS = ["container.launched@2", "session.caller_request@1"]


@pytest.mark.parametrize("point", core(CORE_POINTS, POINTS + MORE_POINTS * SOAK))
async def test_a_server_killed_at_a_failpoint_comes_back_with_everything(sandbox_server, point):
    """Nothing that was acknowledged is lost, nothing is told twice, no agent is left behind."""
    name, _, at = point.partition("@")
    await sandbox_server.start(failpoints=f"{name}=kill@{at}")
    async with Load(sandbox_server) as load:
        await crash(sandbox_server, load)
        await sandbox_server.start()
        await load.come_back()
        await load.finish()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", [*ENGINE_POINTS, *(POINTS + MORE_POINTS) * SOAK])
async def test_a_server_on_an_engine_killed_at_a_failpoint_comes_back_with_everything(
    engine_server, point
):
    """The crash test holds on docker and podman as well."""
    name, _, at = point.partition("@")
    await engine_server.start(failpoints=f"{name}=kill@{at}")
    async with Load(engine_server) as load:
        await crash(engine_server, load, within=60.0)
        await engine_server.start()
        await load.come_back()
        await load.finish()


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(40 if SOAK else 3))
async def test_a_server_killed_at_random_moments_comes_back_with_everything(sandbox_server, round_):
    """Kill -9 again and again, also while it takes over from the last time."""
    seed = int(os.environ.get("OUBLIETTE_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # shown if it fails
    moments = random.Random(seed)
    await sandbox_server.start()
    async with Load(sandbox_server) as load:
        for _ in range(4):
            await crash(sandbox_server, load, after=moments.uniform(0.0, 0.9))
            await sandbox_server.start()
        await load.come_back()
        await load.finish()


async def test_agents_reach_their_files_while_no_server_runs(sandbox_server):
    """Commands and the next server look after the home at once, and long before the containers."""
    await sandbox_server.start()
    async with Here(sandbox_server) as caller:
        session = await caller.spawn(
            "exec echo word > began\nsleep 1\n"
            'exec cat "$OUBLIETTE_WORKSPACE/began" > seen\nexec touch ended\nsay over'
        )
        project = sandbox_server.home / "projects" / caller.project_id / "workspaces"
        await appears(project, "*/began")
        await sandbox_server.kill()
        homes.prepare(sandbox_server.home)
        await appears(project, "*/ended")
        assert [file.read_text() for file in project.glob("*/seen")] == ["word\n"]
        await sandbox_server.start()
        assert (await caller.turns_done(session))["final_response"] == "over"


async def appears(folder: Path, pattern: str) -> None:
    async with asyncio.timeout(20):
        while not list(folder.glob(pattern)):
            await asyncio.sleep(0.01)
