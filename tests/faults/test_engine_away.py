"""The engine is stopped, killed and started again under live sessions.

On a docker daemon of the test's own. What runs in its containers is gone with it, or not: that is
the daemon's `live-restore`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.faults import dockerd
from tests.faults.dockerd import Dockerd
from tests.faults.here import Here
from tests.faults.history import check_log, check_nothing_left, texts
from tests.faults.readiness import ready
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.fork_server import Zygote

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.requires("docker"),
    pytest.mark.skipif(dockerd.lacking() is not None, reason=str(dockerd.lacking())),
]

TURN = 40.0  # seconds
FAILED_WITHIN = 10.0  # seconds from the end of the engine's containers


@pytest.fixture
async def daemon(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Dockerd]:
    """A daemon that runs."""
    made = Dockerd(live_restore=getattr(request, "param", False))
    try:
        await made.start()
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def server(daemon: Dockerd, zygote: Zygote) -> AsyncIterator[ServerProcess]:
    """A server on it."""
    image = await asyncio.to_thread(ensure_image, "docker", daemon.host)
    settings = {
        "containers.runtime": "docker",
        "containers.image": image,
        "containers.network": "none",
        "docker.host": daemon.host,
    }
    async with ServerProcess(zygote=zygote, settings=settings) as made:
        await made.start()
        yield made
        print(made.log()[-50_000:])


def answer(said: str) -> Any:
    """What the caller's tool answered, as the agent has it."""
    return json.loads(said)["structured"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_sessions_of_an_engine_that_ends_fail_with_a_reason_and_are_resumed(
    server: ServerProcess, daemon: Dockerd, number: int
) -> None:
    """Stopped, it ends its containers; killed, it does so when it is started again."""
    async with Here(server) as caller:
        idle = await caller.spawn("remember colour green")
        await caller.turns_done(idle, wait=TURN)
        waiting = await caller.spawn('call tester_approve {"what": "a refund"}')
        asked = await caller.event("caller_tool_request", session_id=waiting, timeout=TURN)
        await daemon.stop(number)
        if number == signal.SIGKILL:
            status, _ = await caller.status(waiting)
            assert status == "running"  # its container does not need the engine
            await daemon.start()
        began = time.monotonic()
        settled = await caller.event(
            "caller_tool_settled", request_id=asked["request_id"], timeout=TURN
        )
        for session in (idle, waiting):
            await caller.event("status", session_id=session, status="failed", timeout=TURN)
            assert "container lost" in str((await caller.status(session))[1])
        assert time.monotonic() - began < FAILED_WITHIN
        assert settled["outcome"] == "cancelled"  # by the agent itself, where it was told to end
        if number == signal.SIGTERM:
            await without_engine(server, caller, idle)
            await daemon.start()
        assert (await ready(server))[0] == 200
        await caller.call("session_message", session_id=idle, message="recall colour")
        assert (await caller.turns_done(idle, wait=TURN))["final_response"] == "green"
        caller.may.set()
        await caller.call(
            "session_message",
            session_id=waiting,
            message='call tester_approve {"what": "it again"}',
        )
        await caller.turns_done(waiting, wait=TURN)
        assert answer(texts(await caller.log(waiting))[-1]) == {"approved": "it again"}
        # The end of a container is heard of again, without a look at the engine.
        ((_, host),) = server.containers().items()
        with server.api() as api:
            (listed,) = api.containers()
            api.kill(listed["Id"], "SIGKILL")
        assert host.pid
        await caller.event(
            "status", session_id=idle, status="failed", after=len(caller.events), timeout=TURN
        )
        for session in (idle, waiting):
            check_log(await caller.log(session))


async def without_engine(server: ServerProcess, caller: Here, idle: str) -> None:
    """Nothing hangs, and everything says what is wrong and what to do."""
    status, body = await ready(server)
    assert status == 503
    assert "docker does not answer" in body
    assert "systemctl start docker" in body
    async with asyncio.timeout(20):
        with pytest.raises(ToolFailed, match="docker does not answer") as failed:
            await caller.call("container_start", project_id=caller.project_id)
        assert "(image)" in str(failed.value)
        assert "start it" in str(failed.value)
        with pytest.raises(ToolFailed, match="no container of this project runs"):
            await caller.call("container_logs", project_id=caller.project_id)
        place = len(caller.events)
        await caller.call("session_message", session_id=idle, message="recall colour")
        await caller.event("status", session_id=idle, status="failed", after=place)
        told = await caller.event("system", session_id=idle, state="failed", after=place)
        assert (told["kind"], told["stage"]) == ("stage", "image")
        assert "docker does not answer" in told["error"]
        assert "start it" in told["remedy"]
        assert "docker does not answer" in str((await caller.status(idle))[1])
        await caller.call("project_list")
        assert server.running


@pytest.mark.parametrize("daemon", [True], indirect=True, ids=["live-restore"])
async def test_sessions_just_go_on_where_containers_outlive_the_engine(
    server: ServerProcess, daemon: Dockerd
) -> None:
    async with Here(server) as caller:
        session = await caller.spawn(
            "emit 200 50\n" + 'call tester_approve {"what": "it"}\n' + "sleep 0.2\nsay done"
        )
        await caller.event("caller_tool_request", timeout=TURN)
        ((container, host),) = server.containers().items()
        await daemon.stop()
        assert (await ready(server))[0] == 503
        caller.may.set()
        page = await caller.turns_done(session, wait=TURN)
        assert page["final_response"] == "done"
        # A server that is killed and cannot ask the engine says so, and takes over afterwards.
        await daemon.start()
        assert (await ready(server))[0] == 200
        await server.kill()
        await server.start()
        await caller.listen(after=caller.next)
        await caller.call("session_message", session_id=session, message="say more")
        page = await caller.turns_done(session, wait=TURN)
        assert page["final_response"] == "more"
        assert server.containers() == {container: host}
        check_log(await caller.log(session))
        check_nothing_left(server)


@pytest.mark.parametrize("daemon", [True], indirect=True, ids=["live-restore"])
async def test_an_actor_that_fails_while_the_engine_is_away_adopts_when_it_is_back(
    server: ServerProcess, daemon: Dockerd
) -> None:
    async with Here(server) as caller:
        session = await caller.spawn("say here")
        await caller.turns_done(session, wait=TURN)
        before = server.containers()
        await daemon.stop()
        await server.arm("fail ContainerActor")
        await server.passes("ContainerActor.AdoptAgain")  # its successor has looked in vain
        await caller.call("session_message", session_id=session, message="say without it")
        assert (await caller.turns_done(session, wait=TURN))["final_response"] == "without it"
        await daemon.start()
        started = await caller.call("container_start", project_id=caller.project_id)
        assert [started["container_id"]] == list(before)
        assert server.containers() == before
        assert "cannot look at containers" in server.log()
        check_nothing_left(server)
