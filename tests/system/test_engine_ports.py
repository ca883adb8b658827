"""Ports of containers of real engines, which have no network, are reached all the same."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FLAVOURS = [pytest.param(each, marks=pytest.mark.requires(each)) for each in ("docker", "podman")]
SERVE = (
    'echo hello > page; python3 -u -c "import http.server as h;'
    " s = h.ThreadingHTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler);"
    " open('ready', 'w').close(); s.serve_forever()\""
)
MAKE = "python3 -c \"import os; os.mkfifo('ready')\""
WAIT = "python3 -c \"open('ready').read()\""  # until the program has opened it


@pytest.fixture(params=FLAVOURS)
async def server(
    request: pytest.FixtureRequest, zygote: Zygote, anyio_backend: str
) -> AsyncIterator[ServerProcess]:
    flavour = request.param
    settings = {
        "containers.runtime": flavour,
        "containers.image": ensure_image(flavour),
        "containers.network": "none",
        "agents.default": "scripted",
    }
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        label = f"dev.oubliette.instance={server.instance()}"
        try:
            yield server
        finally:
            await server.kill()
            api = Engine(flavour).connect()
            for container in api.containers(all=True, filters={"label": [label]}):
                with contextlib.suppress(Exception):
                    api.remove_container(container["Id"], force=True, v=True)
            api.close()


async def test_a_page_of_a_container_without_a_network_is_shown(server: ServerProcess) -> None:
    key = server.token("admin")
    async with HttpCaller(server.url, key, caller_id="admin") as admin:
        made = await admin.call("project_create", name="ports", init_git=False)
        project = {"project_id": made["id"]}
        spawned = await admin.call("session_spawn", prompt="exec echo", **project)
        session_id = spawned["session_id"]
        opened = await admin.call("port_open", session_id=session_id, port=8000)
        place = urlsplit(opened["address"])
        headers = {"host": place.netloc, "authorization": f"Bearer {key}"}
        base = f"http://127.0.0.1:{place.port}"
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=30.0) as browser:
            none = await browser.get("/page")
            assert none.status_code == 502
            assert "Nothing listens on port 8000" in none.text
            made = await admin.call("container_exec", command=MAKE, **project)
            assert made["exit_code"] == 0, made
            serving = asyncio.create_task(
                admin.call("container_exec", command=SERVE, timeout_seconds=100, **project)
            )
            try:
                waited = await admin.call("container_exec", command=WAIT, **project)
                assert waited["exit_code"] == 0, waited
                shown = await browser.get("/page")
                assert (shown.status_code, shown.text) == (200, "hello\n"), shown.text
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            await admin.call("container_stop", force=True, **project)
            assert (await browser.get("/page")).status_code == 421
