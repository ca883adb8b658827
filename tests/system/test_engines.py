"""A whole server on docker, podman and apple: its agents outlive it, and learn of a lost container."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, ToolFailed
from tests.conformance.engines import STANDIN, beneath_apple
from tests.images import ensure_image
from tests.own_time import OwnTime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

TURN = 30.0  # seconds


class House:
    """A server on an engine, and the engine behind its back."""

    def __init__(self, flavour: Any, server: ServerProcess) -> None:
        self.server = server
        self.api = Engine(flavour).connect()

    def containers(self) -> list[dict[str, Any]]:
        label = f"dev.oubliette.instance={self.server.instance()}"
        return self.api.containers(all=True, filters={"label": [label]})

    def close(self) -> None:
        for container in self.containers():
            with contextlib.suppress(Exception):
                if "apple-standin" in container["Labels"]:
                    name = container["Names"][0].removeprefix("/apple-")
                    subprocess.run([STANDIN, "delete", "--force", name], timeout=60, check=False)
                self.api.remove_container(container["Id"], force=True, v=True)
        self.api.close()


@pytest.fixture(
    params=[
        pytest.param("docker", marks=pytest.mark.requires("docker")),
        pytest.param("docker-bridged", marks=pytest.mark.requires("docker")),
        pytest.param("podman", marks=pytest.mark.requires("podman")),
        pytest.param("apple", marks=pytest.mark.requires("apple-standin")),
    ]
)
async def house(
    request: pytest.FixtureRequest, zygote: Zygote, anyio_backend: str
) -> AsyncIterator[House]:
    runtime, _, bridged = request.param.partition("-")
    flavour = beneath_apple() if runtime == "apple" else runtime
    settings = {
        "containers.runtime": runtime,
        "containers.image": ensure_image(flavour),
        "apple.path": str(STANDIN),
        "docker.sockets": "bridge" if bridged else "auto",
    }
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        made = House(flavour, server)
        try:
            yield made
        finally:
            await server.kill()
            made.close()


def caller(house: House, token: str, **more: Any) -> HttpCaller:
    return HttpCaller(
        house.server.url, token, caller_id="shop", tools={"find": lambda: "found"}, **more
    )


async def spawn(shop: HttpCaller, prompt: str) -> str:
    await shop.listen()
    project = await shop.call("project_create", name="it")
    spawned = await shop.call(
        "session_spawn", project_id=project["id"], prompt=prompt, context=shop.context
    )
    return str(spawned["session_id"])


async def test_an_agent_in_a_container_outlives_its_killed_server_in_the_middle_of_a_call(
    house: House,
) -> None:
    token = house.server.token()
    async with caller(house, token, answers=False) as shop:
        session_id = await spawn(shop, "say before\ncall shop_find {}\nsay after")
        asked = await shop.event("caller_tool_request", timeout=TURN)
        before = [container["Id"] for container in house.containers()]
        assert len(before) == 1
        cursor = shop.next
        await house.server.kill()
    await house.server.start()
    async with caller(house, token) as shop:
        await shop.listen(after=cursor)
        await shop.event("completion", session_id=session_id, timeout=TURN)
        page = await shop.call("session_events", session_id=session_id)
        session = await shop.call("session_get", session_id=session_id)
        assert session["isolation"] == "container"
        await shop.call("session_end", session_id=session_id)
    assert [container["Id"] for container in house.containers()] == before
    said = [event["text"] for event in page["events"] if event["type"] == "message"]
    assert (said[0], said[-1]) == ("before", "after")
    requests = [event for event in page["events"] if event["type"] == "caller_tool_request"]
    assert [event["request_id"] for event in requests] == [asked["request_id"]]
    indexes = [event["index"] for event in page["events"]]
    assert indexes == list(range(len(indexes)))


async def test_both_sides_of_a_call_learn_in_two_seconds_that_the_container_is_gone(
    house: House,
) -> None:
    async with caller(house, house.server.token(), answers=False) as shop:
        session_id = await spawn(shop, "call shop_find {}")
        asked = await shop.event("caller_tool_request", timeout=TURN)
        (container,) = house.containers()
        house.api.kill(container["Id"], "SIGKILL")
        killed = OwnTime()
        settled = await shop.event("caller_tool_settled", request_id=asked["request_id"])
        assert "container lost" in settled["error"]
        page = await shop.call("session_events", session_id=session_id)
        while not page["failed"]:
            page = await shop.call(
                "session_events",
                session_id=session_id,
                since_index=page["last_index"],
                wait_seconds=5,
            )
        assert killed.seconds() < 2.0
        # It can be resumed, in a container of its own.
        await shop.call("session_message", session_id=session_id, message="say again")
        await shop.event("message", session_id=session_id, text="again", timeout=TURN)
        (fresh,) = house.containers()
        assert fresh["Id"] != container["Id"]
        await shop.call("session_end", session_id=session_id)


async def test_commands_run_in_a_container_that_a_refresh_takes_away(house: House) -> None:
    async with HttpCaller(house.server.url, house.server.token("admin"), caller_id="ops") as ops:
        with pytest.raises(ToolFailed, match="no-such-type"):
            await ops.call("image_rebuild", container_type="no-such-type")
        project = await ops.call("project_create", name="it")
        done = await ops.call("container_exec", project_id=project["id"], command="id -u")
        assert int(done["stdout"]) > 0
        assert len(house.containers()) == 1
        refreshed = await ops.call("container_refresh", project_id=project["id"])
        assert refreshed["state"] == "local"
        assert house.containers() == []
        await ops.call("project_delete", project_id=project["id"])
