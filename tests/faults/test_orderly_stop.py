"""A cold start and an orderly stop give nobody cause for worry: the log warns of nothing."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.faults.conftest import settings_of
from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RUNTIMES = [
    pytest.param(
        {"containers.runtime": "process", "process.sandbox": "bubblewrap"},
        marks=pytest.mark.requires("bubblewrap"),
        id="bubblewrap",
    ),
    pytest.param(
        {"containers.runtime": "process", "process.sandbox": "best-effort"}, id="best-effort"
    ),
    pytest.param("docker", marks=pytest.mark.requires("docker")),
    pytest.param("podman", marks=pytest.mark.requires("podman")),
]
ALLOWED = {
    "NO ISOLATION: agents run as plain child processes of this user",  # docs/runtimes.md
    "loop was blocked",  # tells of the machine that the tests share, not of the stop
}
CALM = {"debug", "info"}


def worries(log: str) -> list[str]:
    """The lines of a server's log from the level warning on, and those that are no records."""
    found = []
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            found.append(line)
            continue
        if record.get("level") not in CALM and record.get("event") not in ALLOWED:
            found.append(line)
    return found


@pytest.mark.parametrize("settings", RUNTIMES)
@pytest.mark.parametrize("on_stop", ["keep", "end"])
async def test_with_clients_and_agents_connected(settings, on_stop, zygote):
    settings = {**_all(settings), "server.on_stop": on_stop}
    async with ServerProcess(settings=settings, zygote=zygote) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            async with site.caller("sdk-legacy") as listener, site.caller("http-auto") as other:
                await listener.listen()  # and a GET stream, which its SDK opens by itself
                await other.listen()
                resting = await site.spawn(other, "say rested")
                assert await resting.turn() == ["rested"]
                busy = await site.spawn(listener, "say begun\nsleep 60")
                await busy.event("message")
                assert await server.stop() == 0
        await server.start()
        assert await server.stop() == 0
        log = server.log()
    found = worries(log)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("settings", RUNTIMES)
async def test_with_nobody_there(settings):
    async with ServerProcess(settings=_all(settings)) as server:
        for _ in range(2):
            await server.start()
            assert await server.stop() == 0
        log = server.log()
    found = worries(log)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", ["sdk-auto", "sdk-legacy", "http-auto", "http-legacy"])
async def test_what_is_asked_meanwhile_is_answered(kind, zygote):
    """Long calls, a listener and a GET stream are open while SIGTERM comes."""
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            async with site.caller(kind) as caller:
                await caller.listen()  # and a GET stream, where its client opens one
                session = await site.spawn(caller, "say begun\nsleep 60")
                await session.event("message")
                runs = asyncio.ensure_future(server.passes("ContainerActor.RunCommand"))
                asked = [
                    asyncio.ensure_future(caller.call(tool, **arguments))
                    for tool, arguments in (
                        (
                            "session_events",
                            {
                                "session_id": session.session_id,
                                "since_index": 1000,
                                "wait_seconds": 60,
                            },
                        ),
                        (
                            "container_exec",
                            {"project_id": site.project["id"], "command": "sleep 60"},
                        ),
                        (
                            "session_map",
                            {"project_id": site.project["id"], "messages": ["sleep 60"]},
                        ),
                    )
                ]
                await runs
                await caller.call("session_list", project_id=site.project["id"])
                server.signal(signal.SIGTERM)
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert await caller.listener_ended() == "server stopping"
                assert await server.ended() == 0
    for answer in answers:
        assert isinstance(answer, ToolFailed), repr(answer)
        assert "the server is stopping" in str(answer)


def _all(settings):
    return settings_of(settings) if isinstance(settings, str) else settings
