"""A node's program for benchmarks: a System that is connected to those of the other nodes."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from oubliette.kit import Actor, MailboxFull, Message, Reply, System, handles
from oubliette.kit.remote import connect

if TYPE_CHECKING:
    from oubliette.cluster.node_context import NodeContext


class Ring(Message, Reply[int]):
    """Something to answer."""


class Bell(Actor):
    """Answers at once, and counts what it was told."""

    mailbox_size = 1_000_000

    def __init__(self) -> None:
        self.rung = 0

    @handles(Ring)
    def _ring(self, _: Ring) -> int:
        self.rung += 1
        return self.rung


async def main(context: NodeContext) -> None:
    """Serve until stopped."""
    async with System(context.start.node) as system:
        connect(system, context.transport, context.epoch)
        system.spawn(Bell, name="bell")

        async def answer(verb: str, body: bytes) -> bytes:
            told = json.loads(body)
            bell = system.ref(f"{told['node']}!bell")
            started = time.perf_counter()
            if verb == "asks":
                for _ in range(told["count"]):
                    await bell.ask(Ring(), timeout=10)
            elif verb == "asks-at-once":
                asks = [bell.ask(Ring(), timeout=60) for _ in range(told["count"])]
                await asyncio.gather(*asks)
            elif verb == "tells":
                for _ in range(told["count"]):
                    try:
                        bell.tell(Ring())
                    except MailboxFull:  # too many wait for the node: let them go first
                        await bell.ask(Ring(), timeout=60)
                await bell.ask(Ring(), timeout=60)
            else:
                raise ValueError(verb)
            return json.dumps(time.perf_counter() - started).encode()

        context.handler = answer
        context.ready = True
        await context.stopping.wait()
