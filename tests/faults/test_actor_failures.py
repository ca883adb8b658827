"""An actor of each kind fails in the middle of the load: it costs no more than it must."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.faults.load import Crashed, Load
from tests.selection import core

pytestmark = pytest.mark.anyio

KINDS = [
    "SessionActor",
    "SessionConnectionActor",
    "SocketActor",
    "ContainerActor",
    "ContainerSupervisor",
    "SessionsActor",
    "SessionRegistryActor",
    "OpenCallsActor",
    "SnapshotsActor",
    "CallerActor",
    "CallersActor",
    "AgentProcessActor",
    "TreeActor",
    "TreesActor",
    "SubscriptionsActor",
    "ProjectActor",
    "ProjectsActor",
    "StoreActor",
]

# What a turn goes through on its way; the core of the suite has these alone.
CORE = ["StoreActor"]

# Class.Message@pass, told and not asked: an error in the answer to an ask is the asker's.
MESSAGES = {
    "of SessionActor": "SessionActor.LinkRequest@2 SessionActor._Committed@20",
    "of SessionActor, from others": "SessionActor.RequestSettled@1 SessionActor.AgentAttached@2",
    "of SessionActor, what its agent says": "SessionActor.AgentOutput@6",
    "of SessionConnectionActor": "SessionConnectionActor.LinkReply@1 SessionConnectionActor._Opened@2 SessionConnectionActor.LinkNotify@2",
    "of SocketActor": "SocketActor._Connected@1 SocketActor.OpenLink@2",
    "of ContainerActor": "ContainerActor.ContainerStarted@1",
    "of CallerActor": "CallerActor.EventsCommitted@3 CallerActor.TrackRequest@1",
    "of AgentProcessActor": "AgentProcessActor.StdinFrame@2 AgentProcessActor.AckOutput@10",
    "of TreeActor": "TreeActor.AgentBusy@1 TreeActor.AgentBlocked@1",
}


async def goes_on(load: Load) -> None:
    """The rest of the load, as if nothing had happened."""
    with contextlib.suppress(Crashed):
        await asyncio.wait_for(load.go_on(1), 15)
    await load.server.arm("")
    await load.finish()
    assert "FailpointError" in load.server.log(), "nothing failed"


@pytest.mark.parametrize("kind", core(CORE, KINDS))
async def test_an_actor_that_fails_costs_nobody_a_turn(server, kind):
    """Agents live, pending calls go on, nothing is lost or told twice."""
    await server.start(settings={"snapshots.mode": "on" if kind == "SnapshotsActor" else "off"})
    async with Load(server, seconds=0.4) as load:
        await load.come_back()
        await server.arm(f"fail {kind}")
        await goes_on(load)


@pytest.mark.parametrize("message", core(["of SessionActor"], MESSAGES))
async def test_an_actor_that_fails_at_a_message_costs_nobody_a_turn(server, message):
    await server.start()
    async with Load(server, seconds=0.4) as load:
        await load.come_back()
        points = [point.split("@") for point in MESSAGES[message].split()]
        await server.arm(",".join(f"{name}=raise@{at}" for name, at in points))
        await goes_on(load)
