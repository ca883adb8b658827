"""What listens in a container is reached by a browser: links, cookies, bodies, WebSockets, ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest

import oubliette as ob
from tests.callers import ToolFailed
from tests.selection import core

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.system.conftest import Done
    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PROGRAM = r"""
import asyncio, base64, hashlib, json, sys

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").strip().split("\r\n")
            headers = {k.lower(): v.strip() for k, v in (l.split(":", 1) for l in lines)}
            method, path, _ = first.split(" ")
            if path == "/socket":
                mark = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
                accept = base64.b64encode(hashlib.sha1(mark.encode()).digest()).decode()
                writer.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                    "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
                while data := await reader.read(65536):
                    writer.write(b"echo:" + data)
                    await writer.drain()
                return
            if path == "/stream":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                writer.write(b"5\r\nfirst\r\n")
                await writer.drain()
                await reader.read(1)  # nothing more, until the browser has gone
                return
            if path == "/cut":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                return
            if path == "/noise":
                writer.write(b"this is not HTTP\r\n\r\n")
                return
            if path == "/login":
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://localhost:%d/next?a=1\r\n"
                    b"Set-Cookie: app=1; Domain=localhost; Path=/\r\n"
                    b"Set-Cookie: oubliette_port=stolen\r\nService-Worker-Allowed: /\r\n"
                    b"Strict-Transport-Security: max-age=9\r\nContent-Length: 0\r\n\r\n"
                    % int(sys.argv[1]))
                continue
            size = int(headers.get("content-length", 0))
            body = await reader.readexactly(size)
            answer = json.dumps({"method": method, "path": path, "headers": headers, "size": size,
                "digest": hashlib.sha256(body).hexdigest()}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
    except asyncio.IncompleteReadError:
        pass
    finally:
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    print("listening", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class Visit:
    """A session whose agent runs the program, and browsers that visit it."""

    def __init__(self, site: Site, session_id: str, port: int) -> None:
        self.site = site
        self.session_id = session_id
        self.port = port
        self.caller: Any = None
        self.key = ""

    async def open(self) -> dict[str, Any]:
        return await self.caller.call("port_open", session_id=self.session_id, port=self.port)

    @contextlib.asynccontextmanager
    async def browser(self, opened: dict[str, Any]) -> AsyncIterator[httpx2.AsyncClient]:
        """A browser: it resolves names below localhost to this machine, and keeps cookies."""
        place = urlsplit(opened["address"])
        host = {"host": place.netloc}
        base = f"http://127.0.0.1:{place.port}"
        async with httpx2.AsyncClient(base_url=base, headers=host, timeout=30.0) as client:
            yield client

    @contextlib.asynccontextmanager
    async def guest(self) -> AsyncIterator[tuple[dict[str, Any], httpx2.AsyncClient]]:
        """A port that is open for a browser that has been let in."""
        opened = await self.open()
        async with self.browser(opened) as client:
            token = urlsplit(opened["url"])
            entered = await client.get(f"{token.path}?{token.query}")
            assert entered.status_code == 303, entered.text
            client.headers["cookie"] = entered.headers["set-cookie"].partition(";")[0]
            yield opened, client


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
async def visit(site: Site) -> AsyncIterator[Visit]:
    port = free_port()
    key = site.principal()
    async with site.caller("http-auto", token=key) as caller:
        project = await site.new_project()
        await caller.call("file_write", project_id=project["id"], path="program.py", text=PROGRAM)
        agent = await site.spawn(caller, "exec touch here; echo done", project_id=project["id"])
        await agent.turn()
        await shell(caller, project["id"], "mkfifo ready")
        found = Visit(site, agent.session_id, port)
        found.caller, found.key = caller, key
        running = asyncio.create_task(
            caller.call(
                "container_exec",
                project_id=project["id"],
                command=f"python3 program.py {port} > ready",
                timeout_seconds=110,
            )
        )
        try:
            assert "listening" in await shell(caller, project["id"], "head -1 ready")
            yield found
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def shell(caller: Any, project_id: str, command: str) -> str:
    done = await caller.call("container_exec", project_id=project_id, command=command)
    assert done["exit_code"] == 0, done
    return str(done["stdout"])


async def test_a_link_lets_one_browser_in_and_is_valid_once(visit: Visit) -> None:
    opened = await visit.open()
    assert opened["address"].startswith(f"http://p{visit.port}-")
    async with visit.browser(opened) as client:
        assert (await client.get("/")).status_code == 401
        link = urlsplit(opened["url"])
        entered = await client.get(f"{link.path}?{link.query}")
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Domain" not in cookie
        again = await client.get(f"{link.path}?{link.query}")
        assert again.status_code == 403
        assert "used already" in again.text
        value = cookie.partition(";")[0]
        answer = await client.get("/path?q=1", headers={"cookie": f"mine=2; {value}"})
        seen = answer.json()
        assert (seen["method"], seen["path"]) == ("GET", "/path?q=1")
        assert seen["headers"]["host"] == f"localhost:{visit.port}"
        assert seen["headers"]["cookie"] == "mine=2"
        assert seen["headers"]["x-forwarded-host"] == urlsplit(opened["address"]).netloc
        assert (await client.get("/", headers={"cookie": value + "x"})).status_code == 401


@pytest.mark.whole
async def test_bodies_of_any_size_pass_both_ways(visit: Visit) -> None:
    body = os.urandom(5 << 20)
    async with visit.guest() as (_, client):
        seen = (await client.post("/upload", content=body)).json()
        assert (seen["size"], seen["digest"]) == (len(body), hashlib.sha256(body).hexdigest())
        assert seen["headers"]["content-length"] == str(len(body))


@pytest.mark.whole
async def test_an_answer_that_goes_on_is_passed_on_as_it_comes(visit: Visit) -> None:
    async with visit.guest() as (_, client):
        async with client.stream("GET", "/stream") as answer:
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b"first"
            (shown,) = await ports_of(visit)
            assert shown["connections"] == 1
        # The browser has gone, and so has its connection into the container.
        assert (await client.get("/")).status_code == 200


async def ports_of(visit: Visit) -> list[dict[str, Any]]:
    return (await visit.caller.call("port_list", session_id=visit.session_id))["ports"]


async def test_a_program_reaches_no_further_than_its_own_host_name(visit: Visit) -> None:
    async with visit.guest() as (_, client):
        answer = await client.get("/login")
        assert answer.headers["location"] == "/next?a=1"
        assert answer.headers.get_list("set-cookie") == ["app=1; Path=/"]
        assert "service-worker-allowed" not in answer.headers
        assert "strict-transport-security" not in answer.headers


async def test_what_is_no_answer_of_http_gets_a_page_that_says_so(visit: Visit) -> None:
    async with visit.guest() as (_, client):
        answer = await client.get("/noise")
        assert answer.status_code == 502
        assert f"listens on port {visit.port} in the container does not" in answer.text
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("/cut")


async def test_a_page_of_another_origin_is_refused(visit: Visit) -> None:
    async with visit.guest() as (opened, client):
        answer = await client.post("/", headers={"origin": "http://evil.example"})
        assert answer.status_code == 403
        own = opened["address"].rstrip("/")
        seen = (await client.post("/", headers={"origin": own})).json()
        assert seen["headers"]["origin"] == f"http://localhost:{visit.port}"
        for method, site, mode, dest, status in (
            ("GET", "none", "navigate", "document", 200),
            ("GET", "same-origin", "no-cors", "image", 200),
            ("POST", "same-origin", "cors", "empty", 200),
            ("GET", "cross-site", "navigate", "document", 200),  # a link to the page
            ("GET", "same-site", "navigate", "document", 200),
            ("POST", "cross-site", "navigate", "document", 403),
            ("POST", "same-site", "navigate", "document", 403),
            ("GET", "cross-site", "navigate", "iframe", 403),
            ("GET", "same-site", "navigate", "iframe", 403),
            ("GET", "cross-site", "no-cors", "image", 403),
            ("GET", "same-site", "no-cors", "image", 403),
            ("GET", "same-site", "no-cors", "document", 403),
            ("GET", "same-site", "cors", "empty", 403),
            ("GET", "cross-site", "websocket", "websocket", 403),
        ):
            made_by = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
            answer = await client.request(method, "/", headers=made_by)
            assert answer.status_code == status, (method, made_by)
        key = {"authorization": f"Bearer {visit.key}", "sec-fetch-site": "cross-site"}
        assert (await client.get("/", headers=key)).status_code == 200


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
async def test_a_browser_follows_links_to_a_port_in_another_page(
    visit: Visit, tmp_path: Path
) -> None:
    opened = await visit.open()
    target = ""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # it opens more than it uses
            await reader.readuntil(b"\r\n\r\n")
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}<script>location = '{target}'</script>".encode())
        writer.close()

    async def seen(url: str) -> str:
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--timeout=10000", "--dump-dom")
        browser = await asyncio.create_subprocess_exec(
            *("chromium", *options, f"--user-data-dir={tmp_path}", url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            return (await browser.communicate())[0].decode()
        finally:
            if browser.returncode is None:
                browser.kill()
                await browser.wait()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(100):
        page = f"http://elsewhere.localhost:{server.sockets[0].getsockname()[1]}/"
        for target, path in ((opened["url"], "/"), (f"{opened['address']}again", "/again")):
            shown = await seen(page)
            assert f'"path": "{path}"' in shown
            assert '"sec-fetch-site": "cross-site"' in shown
    assert '"sec-fetch-site": "none"' in await seen(f"{opened['address']}typed")


async def test_an_api_key_of_the_owner_is_let_in_and_stays_here(visit: Visit) -> None:
    opened = await visit.open()
    async with visit.browser(opened) as client:
        for token, status in (
            (visit.key, 200),
            (visit.site.principal(), 403),
            ("oub_tok_wrong", 401),
        ):
            answer = await client.get("/", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == status, answer.text
            if status == 200:
                assert "authorization" not in answer.json()["headers"]
    async with visit.guest() as (_, client):
        seen = (await client.get("/", headers={"authorization": "Basic YTpi"})).json()
        assert seen["headers"]["authorization"] == "Basic YTpi"


@pytest.mark.parametrize("end", core(["revoked"], ["revoked", "expired"]))
async def test_what_a_key_let_in_ends_with_the_key(visit: Visit, end: str) -> None:
    admin = visit.site.eyes
    first = visit.key.split("_")[2]
    (owner,) = [
        each["principal"]
        for each in (await admin.call("token_list"))["tokens"]
        if each["token_id"] == f"tok_{first}"
    ]
    seconds = {"expires_in_seconds": 3.0} if end == "expired" else {}
    made = await admin.call("token_create", name="x", scope="write", principal=owner, **seconds)
    async with visit.site.caller("http-auto", token=made["token"]) as caller:
        opened = await caller.call("port_open", session_id=visit.session_id, port=visit.port)
    key = {"authorization": f"Bearer {made['token']}"}
    async with visit.guest() as (_, kept), visit.browser(opened) as client:
        link = urlsplit(opened["url"])
        entered = await client.get(f"{link.path}?{link.query}")
        cookie = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
        async with (
            client.stream("GET", "/stream", headers=key) as by_key,
            client.stream("GET", "/stream", headers=cookie) as by_cookie,
            kept.stream("GET", "/stream") as stays,
        ):
            pieces = [each.aiter_bytes() for each in (by_key, by_cookie, stays)]
            assert [await anext(each) for each in pieces] == [b"first"] * 3
            if end == "revoked":
                await admin.call("token_revoke", token_id=made["token_id"])
            for each in pieces[:2]:
                with pytest.raises(httpx2.RemoteProtocolError):
                    await anext(each)
            (shown,) = await ports_of(visit)
            assert shown["connections"] == 1
        for given in (key, cookie):
            assert (await client.get("/", headers=given)).status_code == 401
        assert (await kept.get("/")).status_code == 200


async def test_a_cookie_that_another_port_sets_for_both_keeps_no_browser_out(
    visit: Visit,
) -> None:
    opened = await visit.open()
    async with visit.browser(opened) as client, visit.browser(opened) as another:
        link = urlsplit(opened["url"])
        entered = await client.get(f"{link.path}?{link.query}")
        own = entered.headers["set-cookie"].partition(";")[0]
        for sent in (f"oubliette_port=x; {own}", f"{own}; oubliette_port=x; a=b"):
            seen = await another.get("/", headers={"cookie": sent})
            assert seen.status_code == 200
            assert "oubliette_port" not in seen.json()["headers"].get("cookie", "")
        assert (await another.get("/", headers={"cookie": "oubliette_port=x"})).status_code == 401


async def test_nobody_else_opens_closes_or_is_told_of_a_port(visit: Visit) -> None:
    await visit.open()
    async with visit.site.caller("http-auto") as other:
        for tool in ("port_open", "port_close"):
            with pytest.raises(ToolFailed, match="not found"):
                await other.call(tool, session_id=visit.session_id, port=visit.port)
    (shown,) = await ports_of(visit)
    assert "token" not in str(shown)


async def test_requests_to_a_port_never_reach_mcp(visit: Visit) -> None:
    async with visit.guest() as (_, client):
        seen = (await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1})).json()
        assert seen["path"] == "/mcp"  # the program's own
        assert (await client.get("/.oubliette/other")).status_code == 404
        refused = await client.post("/mcp", headers={"host": "other.localhost"})
        assert refused.status_code == 421


async def test_a_websocket_is_carried_until_the_port_is_closed(visit: Visit) -> None:
    async with visit.guest() as (opened, client):
        place = urlsplit(opened["address"])
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        head = (
            f"GET /socket HTTP/1.1\r\nHost: {place.netloc}\r\nUpgrade: websocket\r\n"
            "Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        )
        writer.write(f"{head}Cookie: {client.headers['cookie']}\r\n\r\n".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 101 ")
        assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in answer
        for word in (b"one", b"two"):
            writer.write(word)
            assert await reader.readexactly(8) == b"echo:" + word
        closed = await visit.caller.call("port_close", session_id=visit.session_id, port=visit.port)
        assert closed["closed"]
        assert await reader.read() == b""
        writer.close()
        assert (await client.get("/")).status_code == 421


async def test_a_websocket_without_a_cookie_is_refused(visit: Visit) -> None:
    opened = await visit.open()
    async with visit.browser(opened) as client:
        asked = {"upgrade": "websocket", "connection": "Upgrade"}
        assert (await client.get("/socket", headers=asked)).status_code == 401


async def test_a_port_without_a_listener_says_so(visit: Visit) -> None:
    other = free_port()
    opened = await visit.caller.call("port_open", session_id=visit.session_id, port=other)
    async with visit.browser(opened) as client:
        key = {"authorization": f"Bearer {visit.key}"}
        answer = await client.get("/", headers=key)
        assert answer.status_code == 502
        assert f"Nothing listens on port {other} in the container" in answer.text


async def test_a_port_ends_with_its_session(visit: Visit) -> None:
    async with visit.guest() as (_, client):
        await visit.caller.call("session_end", session_id=visit.session_id)
        assert (await client.get("/")).status_code == 421
        with pytest.raises(ToolFailed, match="the session was ended") as refused:
            await visit.open()
        assert "start another one" in str(refused.value)


async def test_the_log_of_the_session_has_when_a_port_was_open(visit: Visit) -> None:
    await visit.open()
    await visit.open()  # once more a link, not a port
    await visit.caller.call("port_close", session_id=visit.session_id, port=visit.port)
    agent = visit.site.agent(visit.session_id)
    closed = await agent.event("system", kind="port_closed")
    assert closed["port"] == visit.port
    kinds = [each.get("kind") for each in agent.log]
    assert (kinds.count("port_opened"), kinds.count("port_closed")) == (1, 1)


async def test_a_python_program_opens_a_port(visit: Visit) -> None:
    async with ob.connect(visit.site.server.url, visit.key) as system:
        session = await system.session(visit.session_id)
        async with await session.open_port(visit.port) as port:
            async with visit.browser({"address": port.address}) as client:
                link = urlsplit(port.url)
                assert (await client.get(f"{link.path}?{link.query}")).status_code == 303
        assert await ports_of(visit) == []
        assert not await port.close()


@pytest.mark.whole
async def test_the_command_prints_a_link_and_closes_the_port(
    site: Site, oubliette: Callable[..., Awaitable[Done]]
) -> None:
    project = await site.new_project()
    spawned = await oubliette("session", "spawn", project["id"], "exec echo", "-o", "json")
    session_id = spawned.json["session_id"]
    site.agent(session_id)
    opened = await oubliette("port", session_id, "8000", "--keep")
    assert opened.out.startswith("http://p8000-")
    again = await oubliette("port", session_id, "8000", "--keep", "-o", "json")
    assert again.json["name"] in opened.out
    closed = await oubliette("port", session_id, "8000", "--close")
    assert (closed.code, closed.err) == (0, "Port 8000 is closed.\n")


async def test_the_command_says_whose_a_session_is(
    site: Site, oubliette: Callable[..., Awaitable[Done]]
) -> None:
    async with site.caller("http-auto") as caller:
        theirs = await site.spawn(caller, "say hi")
    refused = await oubliette("port", theirs.session_id, "8000", "--keep")
    assert refused.code != 0
    assert "belongs to another principal, and only that one may open its ports" in refused.err
    unknown = await oubliette("port", f"{theirs.session_id[:-4]}0000", "8000", "--keep")
    assert "not found" in unknown.err


async def test_an_interrupted_command_closes_its_port(
    site: Site, oubliette: Callable[..., Awaitable[Done]]
) -> None:
    project = await site.new_project()
    spawned = await oubliette("session", "spawn", project["id"], "exec echo", "-o", "json")
    session_id = spawned.json["session_id"]
    site.agent(session_id)
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "oubliette", "port", session_id, "8000"),
        env={**os.environ, "OUBLIETTE_HOME": str(site.server.home), "NO_COLOR": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert command.stderr is not None
        async with asyncio.timeout(60):
            assert b"until you press Ctrl-C" in await command.stderr.readline()
            command.send_signal(signal.SIGINT)
            assert b"is closed" in await command.stderr.readline()
            assert await command.wait() == 0
    finally:
        if command.returncode is None:
            command.kill()
            await command.wait()
    assert (await site.eyes.call("port_list", session_id=session_id))["ports"] == []
