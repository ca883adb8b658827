"""Tenants that take all they can get: each in a process of its own, until its stdin ends.

`python -m tests.faults.attackers KIND PORT [KEY SESSION …]` prints a line when it is at work, and at its end
what it has done. They run at a low priority: what a test measures is the share of the server.
`FLOOD` is what an agent runs in its sandbox.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

NICE = 10
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "mallory", "version": "1"},
}
done: collections.Counter[str] = collections.Counter()
"""What was done, by its name."""


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the server."""
    return await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)


async def again(name: str, work: Callable[[], Awaitable[object]]) -> None:
    """Do it again and again; that the server closes a connection is no reason to stop."""
    while True:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(10):
                await work()
                done[name] += 1
        await asyncio.sleep(0)


async def held(port: int, data: bytes, most: int, *, seconds: float = 0.002) -> None:
    """Open connections, send this on each and keep them open, replacing the oldest."""
    kept: collections.deque[asyncio.StreamWriter] = collections.deque()

    async def one() -> None:
        _, writer = await connect(port)
        writer.write(data)
        kept.append(writer)
        if len(kept) > most:
            kept.popleft().transport.abort()
        await asyncio.sleep(seconds)

    await again(f"held {data[:30]!r}", one)


def post(key: str, body: Any, more: str = "", length: int | None = None) -> bytes:
    """A request to /mcp."""
    data = json.dumps(body).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        f"{more}Content-Length: {length or len(data)}\r\n\r\n"
    )
    return head.encode() + data


def call(key: str, tool: str, arguments: dict[str, Any]) -> bytes:
    """A call of a tool, by the newest generation of the protocol."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "mallory", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    more = f"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return post(key, body, more)


async def calls(port: int, request: bytes) -> None:
    """Send one request after the other on a connection, without a pause."""

    async def one() -> None:
        reader, writer = await connect(port)
        try:
            while True:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                status = head.split(None, 2)[1].decode()
                done[f"{request.split(b'Mcp-Name: ')[-1][:20].split()[0].decode()} {status}"] += 1
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                if length:
                    await reader.readexactly(int(length))
                else:
                    while (size := int(await reader.readuntil(b"\r\n"), 16)) >= 0:
                        await reader.readexactly(size + 2)
                        if not size:
                            break
        finally:
            writer.transport.abort()

    await again("connections", one)


async def sessions(port: int, key: str) -> None:
    """Open MCP sessions, each with a listening stream, and leave them."""
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}

    async def one() -> None:
        reader, writer = await connect(port)
        writer.write(post(key, hello))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "mcp-session-id: " not in head:
            writer.transport.abort()
            done["no session"] += 1
            return
        session = head.partition("mcp-session-id: ")[2].split("\r\n")[0]
        writer.write(
            f"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            f"Mcp-Session-Id: {session}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        kept.append(writer)
        if len(kept) > 200:
            kept.popleft().transport.abort()

    kept: collections.deque[asyncio.StreamWriter] = collections.deque()
    await again("sessions", one)


def reader(port: int, key: str, *read: str) -> list[Coroutine[Any, Any, None]]:
    """What a key does that may only read."""
    whole = {"since_index": -1, "max_events": 1000}
    return [
        sessions(port, key),
        held(port, call(key, "project_list", {}), 300),
        held(port, post(key, {}, length=400), 300),
        *(calls(port, call(key, "project_list", {"limit": 1000})) for _ in range(8)),
        *(calls(port, call(key, "session_list", {"limit": 1000})) for _ in range(8)),
        *(
            calls(port, call(key, "session_events", {"session_id": each, **whole}))
            for each in read
            for _ in range(16)
        ),
        *(
            calls(port, call(key, "caller_listen", {"caller_id": f"m{n}", "max_seconds": 1}))
            for n in range(32)
        ),
    ]


def stranger(port: int) -> list[Coroutine[Any, Any, None]]:
    """What a process does that has no key."""
    head = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n"
    return [
        held(port, b"", 300),
        held(port, head, 300),
        held(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 300),
        held(port, head + b"X-Big: " + b"x" * 60_000 + b"\r\n\r\n", 50, seconds=0.005),
        *(calls(port, post("obl_tok_wrong_wrong", {}, "Mcp-Name: wrong\r\n")) for _ in range(16)),
        *(
            calls(port, b"GET /health HTTP/1.1\r\nHost: l\r\nMcp-Name: health\r\n\r\n")
            for _ in range(8)
        ),
    ]


async def main(kind: str, port: str, *more: str) -> None:
    """Attack until stdin ends."""
    os.nice(NICE)
    work = {"reader": reader, "stranger": stranger}[kind](int(port), *more)
    tasks = [asyncio.ensure_future(each) for each in work]
    print("at work", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    failed = [
        each
        for each in await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(each, Exception)
    ]
    print(json.dumps({**done, "failed": [repr(each) for each in failed]}), flush=True)


FLOOD = r"""
import collections, json, os, socket, sys, threading, time
header, port = sys.argv[1], int(sys.argv[2])
os.nice(10)
done = collections.Counter()

def dial():
    link = socket.socket(socket.AF_UNIX)
    link.connect(sys.argv[3])
    return link

def line(number, method, **params):
    body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(body).encode() + b"\n"

def drain(link):
    try:
        while piece := link.recv(1 << 20):
            done["answers"] += piece.count(b"\n")
    except OSError:
        pass

def requests():
    number = 0
    while True:
        try:
            link = dial()
            link.sendall(header.encode() + b"\n")
            threading.Thread(target=drain, args=(link,), daemon=True).start()
            for _ in range(20_000):
                number += 1
                call = {"tool": "wait", "arguments": {"x": "y" * 100}}
                link.sendall(
                    line(number, "caller_tool", call_id="same", **call)
                    + line(-number, "caller_tool", call_id="c%d" % number, **call)
                    + line(None, "notifications/cancelled", requestId=-number)
                    + line("e%d" % number, "session_events", session_id="sess_x")
                    + line("t%d" % number, "oubliette_tools")
                    + line("u%d" % number, "unknown")
                )
                done["requests"] += 6
        except OSError:
            done["cut"] += 1

def connections():
    kept = collections.deque()
    while True:
        try:
            link = dial()
            link.sendall(b"x" * (len(kept) % 3))
            kept.append(link)
            web = socket.create_connection(("127.0.0.1", port))
            web.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            kept.append(web)
            done["connections"] += 2
        except OSError:
            done["refused"] += 1
        while len(kept) > 300:
            kept.popleft().close()
        time.sleep(0.002)

for work in (requests, connections):
    threading.Thread(target=work, daemon=True).start()
while True:
    time.sleep(1)
    with open("done.json", "w") as file:
        json.dump(done, file)
"""

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
