"""The harness itself: a server that is killed and comes back on the same home."""

from __future__ import annotations

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller

pytestmark = pytest.mark.anyio


async def test_a_server_process_is_killed_and_comes_back_at_the_same_address(server):
    await server.start()
    url, first = server.url, server.pid
    async with HttpCaller(url, server.token()) as caller:
        project = await caller.call("project_create", name="kept")
    await server.kill()
    await server.start()
    assert (server.url, server.pid != first) == (url, True)
    async with HttpCaller(url, server.token()) as caller:
        found = await caller.call("project_list")
        assert [one["id"] for one in found["projects"]] == [project["id"]]
    assert await server.stop() == 0


@pytest.mark.whole
async def test_a_failpoint_is_armed_while_the_server_runs(server):
    await server.start()
    await server.arm("store.before_commit=kill")
    with pytest.raises(Exception):
        server.token()
    assert await server.ended() == -9


async def test_a_front_that_fails_ends_the_server(server):
    """It has no supervisor: another process has to begin."""
    await server.start()
    await server.arm("fail FrontActor")
    assert await server.ended() == 1
    assert "the server could not go on: front ended" in server.log()


@pytest.mark.whole
async def test_without_a_zygote_it_is_a_program_of_its_own(anyio_backend):
    async with ServerProcess() as server:
        await server.start()
        assert server.token().startswith("oub_")
        assert await server.stop() == 0
