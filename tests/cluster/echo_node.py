"""A node's program for tests: it answers each frame, and does what the agent asks of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING

from oubliette.kit.remote.transport import PeerGone

if TYPE_CHECKING:
    from oubliette.cluster.node_context import NodeContext


class Echo:
    """Answers `ask N` by `re N`, keeps `tell …`, and learns of deaths."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.kept: list[str] = []
        self.gone: list[tuple[str, str]] = []
        self.answers: dict[str, asyncio.Future[None]] = {}
        self.waiting: dict[str, set[str]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.out: dict[str, list[bytes]] = {}
        self.pumps: dict[str, asyncio.Task[None]] = {}
        self.number = 0

    async def receive(self, node: str, frames: list[bytes]) -> list[bytes]:
        reply: list[bytes] = []
        for frame in frames:
            kind, _, text = frame.decode().partition(" ")
            if kind == "ask":
                reply.append(f"re {text}".encode())
            elif kind == "re":
                if (future := self.answers.pop(text, None)) is not None:
                    future.set_result(None)
            elif kind == "tell":
                self.kept.append(text)
        return reply

    def lost(self, node: str, reason: str) -> None:
        self.gone.append((node, reason))
        for number in self.waiting.pop(node, set()):
            if (future := self.answers.pop(number, None)) is not None and not future.done():
                future.set_exception(PeerGone(node, reason))

    def put(self, node: str, text: str) -> None:
        self.out.setdefault(node, []).append(text.encode())
        if node not in self.pumps:
            self.pumps[node] = asyncio.create_task(self.pump(node))

    async def pump(self, node: str) -> None:
        try:
            while frames := self.out.pop(node, []):
                await self.receive(node, await self.context.transport.send(node, frames))
        except PeerGone as gone:
            self.lost(node, gone.reason)
        finally:
            del self.pumps[node]

    async def ask(self, node: str, kind: str = "ask", seconds: float = 60) -> None:
        self.number += 1
        number = str(self.number)
        future = self.answers[number] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(node, set()).add(number)
        self.put(node, f"{kind} {number}")
        async with asyncio.timeout(seconds):
            await future
        self.waiting.get(node, set()).discard(number)

    async def answer(self, verb: str, body: bytes) -> bytes:
        told = json.loads(body or b"{}")
        started = time.perf_counter()
        result: object = None
        if verb == "ask":
            with contextlib.suppress(KeyError):
                await self.ask(told["node"])
            result = time.perf_counter() - started
        elif verb == "ask-mute":  # no answer ever comes: ends with the peer's death
            try:
                await self.ask(told["node"], "mute")
            except PeerGone as gone:
                result = {"gone": gone.reason, "at": time.time()}
        elif verb == "asks":
            for _ in range(told["count"]):
                await self.ask(told["node"])
            result = time.perf_counter() - started
        elif verb == "asks-for":
            asked = 0
            while time.perf_counter() - started < told["seconds"]:
                await self.ask(told["node"], seconds=10)
                asked += 1
            result = asked
        elif verb == "tells":
            for number in range(told["count"]):
                self.put(told["node"], f"tell {number}")
                if not number % 1000:
                    await asyncio.sleep(0)
            await self.ask(told["node"])
            result = time.perf_counter() - started
        elif verb == "kept":
            result = self.kept
        elif verb == "gone":
            result = self.gone
        elif verb == "block":  # a handler that blocks the program's loop
            time.sleep(told["seconds"])
        else:
            raise ValueError(verb)
        return json.dumps(result).encode()


async def main(context: NodeContext) -> None:
    """Serve until stopped."""
    echo = Echo(context)
    context.handler = echo.answer
    context.transport.start(echo.receive, echo.lost)
    context.ready = True
    await context.stopping.wait()
    for pump in list(echo.pumps.values()):
        pump.cancel()
