"""A port of a container is reached through any node, not only through the one of its container."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest

import oubliette
from tests.nodes import Nodes
from tests.system.test_ports import PROGRAM, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.requires("postgres")]


class Site:
    """A program that listens in a container on `alpha`, for browsers that know `beta`."""

    def __init__(self, cluster: Nodes, ob: oubliette.Oubliette, session_id: str, port: int) -> None:
        self.cluster = cluster
        self.ob = ob
        self.session_id = session_id
        self.port = port

    async def open(self) -> dict[str, Any]:
        return await self.ob.call("port_open", session_id=self.session_id, port=self.port)

    def at_beta(self, opened: dict[str, Any]) -> str:
        """The Host header of a request for the port that goes to beta."""
        name = str(urlsplit(opened["address"]).hostname)
        return f"{name}:{urlsplit(self.cluster.servers['beta'].url).port}"

    @contextlib.asynccontextmanager
    async def browser(self, host: str) -> AsyncIterator[httpx2.AsyncClient]:
        base = self.cluster.servers["beta"].url.removesuffix("/mcp")
        async with httpx2.AsyncClient(base_url=base, headers={"host": host}, timeout=30.0) as it:
            yield it

    async def entered(self, client: httpx2.AsyncClient, opened: dict[str, Any]) -> None:
        """Let a browser in by the link."""
        link = urlsplit(opened["url"])
        answer = await client.get(f"{link.path}?{link.query}")
        assert answer.status_code == 303, answer.text
        client.headers["cookie"] = answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture
async def site(postgres_url: str) -> AsyncIterator[Site]:
    async with Nodes(postgres_url) as cluster:
        await cluster.start("alpha", "beta")
        cluster.drain("beta")
        port = free_port()
        url, key = cluster.servers["beta"].url, await cluster.key("alpha", "write")
        async with oubliette.connect(url, key) as ob:
            project = await ob.project("shop")
            session = await project.spawn("exec touch here")
            await ob.call("file_write", project_id=project.id, path="program.py", text=PROGRAM)
            await project.exec("mkfifo ready")
            running = asyncio.create_task(
                project.exec(f"python3 program.py {port} > ready", timeout=110)
            )
            try:
                assert "listening" in (await project.exec("head -1 ready"))["stdout"]
                yield Site(cluster, ob, session.id, port)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def test_a_browser_at_one_node_visits_a_port_on_another(site: Site) -> None:
    opened = await site.open()
    body = os.urandom(3 << 20)
    async with site.browser(site.at_beta(opened)) as client:
        assert (await client.get("/")).status_code == 401
        await site.entered(client, opened)
        seen = (await client.post("/upload", content=body)).json()
        assert (seen["size"], seen["digest"]) == (len(body), hashlib.sha256(body).hexdigest())
        async with client.stream("GET", "/stream") as answer:
            assert await anext(answer.aiter_bytes()) == b"first"
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("/cut")
        unknown = {"host": f"{opened['name'].rpartition('-')[0]}-00000000.localhost"}
        assert (await client.get("/", headers=unknown)).status_code == 421


@pytest.mark.whole
async def test_a_key_is_checked_at_the_door_and_ends_what_it_let_in(site: Site) -> None:
    opened = await site.open()
    reading = await site.cluster.key("beta", "read")
    other = await site.cluster.key("beta", "write")
    async with site.browser(site.at_beta(opened)) as client:
        for key, status in ((reading, 403), (other, 403), ("oub_tok_wrong", 401)):
            answer = await client.get("/", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status, answer.text


@pytest.mark.whole
async def test_a_websocket_through_another_node_ends_with_the_port(site: Site) -> None:
    opened = await site.open()
    host = site.at_beta(opened)
    async with site.browser(host) as client:
        await site.entered(client, opened)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(host.rpartition(":")[2]))
        head = (
            f"GET /socket HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
            "Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        )
        writer.write(f"{head}Cookie: {client.headers['cookie']}\r\n\r\n".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 101 ")
        for word in (b"one", b"two"):
            writer.write(word)
            assert await reader.readexactly(8) == b"echo:" + word
        await site.ob.call("port_close", session_id=site.session_id, port=site.port)
        assert await reader.read() == b""
        writer.close()
        assert (await client.get("/")).status_code == 421


@pytest.mark.whole
async def test_a_browser_of_a_node_that_was_lost_holds_no_connection(site: Site) -> None:
    opened = await site.open()
    async with site.browser(site.at_beta(opened)) as client:
        await site.entered(client, opened)
        async with client.stream("GET", "/stream") as answer:
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b"first"
            site.cluster.network.cut("beta")
            with pytest.raises(httpx2.RemoteProtocolError):
                await anext(pieces)
    async with asyncio.timeout(20):
        while (await shown(site))["connections"]:
            await asyncio.sleep(0.05)  # there is no notice of it


async def shown(site: Site) -> dict[str, Any]:
    listed = await site.cluster.control("alpha", "port_list", session_id=site.session_id)
    return dict(listed["ports"][0])
