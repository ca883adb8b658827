"""Calls a second of plain tool calls by 1, 10 and 50 clients, beside two floors in the same run.

    python -m tests.bench.front_calls [--seconds 3] [--rounds 2] [--clients 1 10 50]

The floors: an ASGI endpoint that reads the body and answers with a document of the same size on
our own listener (what HTTP costs), and a bare server of the official SDK with one trivial tool on
a plain uvicorn (what MCP costs without us). All are processes of their own and take turns; the
client is the same for all, a process too: bytes made beforehand, each connection sends its next
call when it has the answer. Server time is the processor time of the server's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from oubliette.testing.server import ServerProcess
from tests.bench.start import until_ok

ROOT = Path(__file__).resolve().parents[2]
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
FAST = {"callers.calls_per_second": 1_000_000, "callers.calls_burst": 1_000_000}
SIZE = 1000  # bytes of the raw endpoint's answer
WARM = 0.5  # seconds


# ---------------------------------------------------------------- floors


def raw() -> None:
    """Serve an endpoint that takes a body and gives a document."""
    from oubliette.mcp_front.transport.http_server import HttpServer

    body = b'{"a":"' + b"x" * SIZE + b'"}'
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def serve() -> None:
        server = HttpServer(app, "127.0.0.1", 0)
        await server.start()
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0.1)

    asyncio.run(serve())


def sdk() -> None:
    """Serve one trivial tool with the SDK and uvicorn as they come."""
    import mcp_types as t
    import uvicorn
    from mcp.server.lowlevel import Server

    async def listed(*_: Any) -> t.ListToolsResult:
        return t.ListToolsResult(
            tools=[t.Tool(name="project_list", input_schema={"type": "object"})]
        )

    async def called(*_: Any) -> t.CallToolResult:
        return t.CallToolResult(
            content=[t.TextContent(text='{"projects":[]}')], structured_content={"projects": []}
        )

    app = Server("bare", on_list_tools=listed, on_call_tool=called).streamable_http_app()
    # With the protocol named, or asyncio leaves Nagle's algorithm on: 40 ms a call.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    server.run(sockets=[listener])


# ---------------------------------------------------------------- the client


class Connection(asyncio.Protocol):
    """Sends its request again as soon as the answer is there."""

    def __init__(self, request: bytes, until: float) -> None:
        self.request, self.until = request, until
        self.took: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self.buffer = b""
        self.sent = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._next()

    def _next(self) -> None:
        self.sent = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.find(b"content-length: ")
        if at >= 0:
            if len(body) < int(lower[at + 16 :].partition(b"\r\n")[0]):
                return
        elif not body.endswith(b"0\r\n\r\n"):
            return
        now = time.perf_counter()
        if not head.startswith(b"HTTP/1.1 200") or b'"isError":true' in body:
            self.done.set_exception(RuntimeError(self.buffer[:1000].decode()))
            self.transport.close()
            return
        self.took.append(now - self.sent)
        self.buffer = b""
        if now >= self.until:
            self.transport.close()
        else:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def request_of(port: int, body: dict[str, Any], key: str, headers: dict[str, str]) -> bytes:
    data = json.dumps(body).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST /mcp HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Bearer {key}\r\n"
        "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
        f"{lines}content-length: {len(data)}\r\n\r\n"
    ).encode() + data


async def exchange(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request.replace(b"host: ", b"connection: close\r\nhost: ", 1))
    answer = await reader.read()
    writer.close()
    return answer


async def prepare(host: str, port: int, key: str, mode: str, tool: str) -> bytes:
    """The call of a client, in a session of its own where the generation has some."""
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    if mode == MODERN:
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
        return request_of(port, {**call, "params": {**params, "_meta": META}}, key, headers)
    hello = {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": META[next(reversed(META))],
    }
    initialize = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    answer = await exchange(host, port, request_of(port, initialize, key, {}))
    session = answer.lower().partition(b"mcp-session-id: ")[2].partition(b"\r\n")[0].decode()
    headers = {"mcp-protocol-version": HANDSHAKE, "mcp-session-id": session}
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await exchange(host, port, request_of(port, note, key, headers))
    return request_of(port, {**call, "params": params}, key, headers)


async def load(url: str, key: str, mode: str, tool: str, clients: int, seconds: float) -> None:
    host, port = url.split("/")[2].split(":")
    loop = asyncio.get_running_loop()
    requests = [await prepare(host, int(port), key, mode, tool) for _ in range(clients)]
    for length in (WARM, seconds):
        print("begin", flush=True)
        began = time.perf_counter()
        made = [
            (
                await loop.create_connection(
                    lambda r=r: Connection(r, began + length), host, int(port)
                )
            )[1]
            for r in requests
        ]
        await asyncio.gather(*(each.done for each in made))
        took = sorted(one for each in made for one in each.took)
        counts = [len(each.took) for each in made]
        print(
            json.dumps(
                {
                    "calls": len(took),
                    "seconds": time.perf_counter() - began,
                    "p50": statistics.median(took) * 1000,
                    "p99": took[int(len(took) * 0.99)] * 1000,
                    "least": min(counts) / max(counts),
                }
            ),
            flush=True,
        )


# ---------------------------------------------------------------- the run


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Floor:
    """A floor in a process of its own."""

    async def start(self, kind: str) -> str:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.front_calls", "--serve", kind,
            cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    async def stop(self) -> None:
        self.process.terminate()
        await self.process.wait()


async def measure(
    url: str, pid: int, key: str, mode: str, tool: str, clients: int, seconds: float
) -> dict[str, float]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.front_calls", "--load", url, key, mode, tool,
        str(clients), str(seconds), cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    for _ in range(3):
        await child.stdout.readline()  # begin, warm, begin
    before = cpu(pid)
    answer = json.loads(await child.stdout.readline())
    answer["cpu"] = (cpu(pid) - before) / answer["calls"] * 1000
    answer["rate"] = answer["calls"] / answer["seconds"]
    await child.wait()
    return answer


async def main(seconds: float, rounds: int, numbers: list[int], tool: str) -> None:
    floors = {kind: Floor() for kind in ("raw", "sdk")}
    urls = {kind: await floor.start(kind) for kind, floor in floors.items()}
    try:
        async with ServerProcess(settings=FAST) as server:
            await server.start()
            # The SDK is imported beside the first calls otherwise, and counts as theirs.
            port = int(server.url.split("/")[2].rpartition(":")[2])
            await asyncio.to_thread(until_ok, port, "/ready")
            key = server.token("admin")
            targets = [("raw", MODERN, urls["raw"], floors["raw"].process.pid)]
            for mode in (MODERN, HANDSHAKE):
                targets += [
                    ("sdk", mode, urls["sdk"], floors["sdk"].process.pid),
                    ("oubliette", mode, server.url, server.pid),
                ]
            for clients in numbers:
                found: dict[tuple[str, str], list[dict[str, float]]] = {}
                for _ in range(rounds):
                    for name, mode, url, pid in targets:
                        one = await measure(url, pid, key, mode, tool, clients, seconds)
                        found.setdefault((name, mode), []).append(one)
                floor = statistics.median(one["rate"] for one in found["raw", MODERN])
                for (name, mode), runs in found.items():
                    middle = {
                        field: statistics.median(run[field] for run in runs) for field in runs[0]
                    }
                    print(
                        f"{tool} by {clients:>2}, {name:>9} {mode if name != 'raw' else ' ' * 10}:"
                        f" {middle['rate']:6.0f} calls/s ({middle['rate'] / floor:.2f} of raw),"
                        f" p50 {middle['p50']:.2f} p99 {middle['p99']:.2f} ms,"
                        f" server CPU {middle['cpu']:.2f} ms,"
                        f" slowest client {middle['least']:.2f} of the fastest",
                        flush=True,
                    )
    finally:
        for floor in floors.values():
            await floor.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 10, 50])
    parser.add_argument("--tool", default="project_list")
    parser.add_argument("--serve", choices=["raw", "sdk"])
    parser.add_argument("--load", nargs=6)
    given = parser.parse_args()
    if given.serve:
        {"raw": raw, "sdk": sdk}[given.serve]()
    elif given.load:
        url, key, mode, tool, clients, seconds = given.load
        asyncio.run(load(url, key, mode, tool, int(clients), float(seconds)))
    else:
        asyncio.run(main(given.seconds, given.rounds, given.clients, given.tool))
