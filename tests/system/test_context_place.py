"""`/workspace/.rlm-context` is the context of the default workspace, on every runtime."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.conformance.engines import STANDIN, beneath_apple
from tests.images import ensure_image
from tests.system.conftest import ROOMY
from tests.system.real_agents import remove_containers
from tests.system.site import Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.sandboxless, pytest.mark.timeout(120)]

LONG = 60.0  # seconds


@pytest.fixture(
    params=[
        "best-effort",
        pytest.param("bubblewrap", marks=pytest.mark.requires("bubblewrap")),
        pytest.param("docker", marks=pytest.mark.requires("docker")),
        pytest.param("podman", marks=pytest.mark.requires("podman")),
        pytest.param("apple", marks=pytest.mark.requires("apple-standin")),
    ]
)
async def place(
    request: pytest.FixtureRequest, zygote: Zygote, anyio_backend: str
) -> AsyncIterator[Site]:
    """A server on each runtime."""
    name = str(request.param)
    settings: dict[str, Any] = dict(ROOMY)
    engine: Any = None
    if name in {"best-effort", "bubblewrap"}:
        settings |= {"containers.runtime": "process", "process.sandbox": name}
    else:
        engine = beneath_apple() if name == "apple" else name
        settings |= {"containers.runtime": name, "containers.image": ensure_image(engine)}
        settings["apple.path"] = str(STANDIN)
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        try:
            async with site.eyes:
                await site.open()
                yield site
                await site.eyes.call("container_stop", project_id=site.project["id"], force=True)
        finally:
            await server.kill()
            if engine is not None:
                remove_containers(engine, server.instance())


async def test_what_an_agent_writes_is_there_and_what_stands_there_an_agent_reads(
    place: Site,
) -> None:
    async def run(command: str) -> str:
        done = await place.eyes.call(
            "container_exec",
            project_id=place.project["id"],
            working_dir="/workspace",  # translated where nothing is mounted
            command=command,
        )
        assert done["exit_code"] == 0, done
        return str(done["stdout"])

    async with place.caller("http-auto") as caller:
        agent = await place.spawn(caller, 'call context_write {"descriptor": "part", "data": 7}')
        await agent.turn(LONG)
        file = f"{agent.session_id}_part.json"
        assert await run("ls .rlm-context") == f"{file}\n"
        assert json.loads(await run(f"cat .rlm-context/{file}")) == 7
        own = "$OUBLIETTE_WORKSPACE/.rlm-context"
        assert await run(f"cat .rlm-context/{file}") == await run(f'cat "{own}/{file}"')
        # Whole at once, as the context's own writers do it.
        await run(
            f"echo 8 > .rlm-context/{file}.tmp; mv .rlm-context/{file}.tmp .rlm-context/{file}"
        )
        read = await agent.ask('call context_read {"descriptor": "part"}', LONG)
        assert [each["data"] for each in read["structured"]["entries"]] == [8]
        await agent.end()
