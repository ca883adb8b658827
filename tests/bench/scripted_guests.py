"""Guests of very many containers, played by one process: no agent has a process of its own.

    python -m tests.bench.scripted_guests SOCKET

A connection begins with the key of its container in a line; what follows is the wire, as with a
real guest. Each agent answers each prompt at once, by its script.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys

from oubliette.incontainer import wire
from tests.unit.actors.fake_guest import FakeGuest, FakeProcess

KEY_LINE = 2 * wire.KEY_BYTES + 1
"""Bytes of the line with the key, which is hexadecimal."""


class ScriptedProcess(FakeProcess):
    """An agent that answers each prompt with a message and the end of the turn."""

    def take(self, frame: wire.Frame) -> None:
        """Accept a frame of its input, and answer it."""
        super().take(frame)
        self.accept()
        for line in frame.payload.splitlines():
            said = json.loads(line)
            if said["type"] != "prompt":
                continue
            turn, text = said["turn"], f"heard {said['text']}"
            self.say(type="turn_started", turn=turn)
            self.say(type="message", turn=turn, text=text)
            self.say(type="completion", turn=turn, final_text=text, status="completed")


async def serve(path: str) -> None:
    """Play until the standard input ends."""
    guests: dict[str, FakeGuest] = {}
    links: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()

    async def play(connection: socket.socket) -> None:
        line = b""
        while left := KEY_LINE - len(line):
            read = await loop.sock_recv(connection, left)
            if not read:
                return
            line += read
        key = line.decode().strip()
        if key not in guests:
            guests[key] = FakeGuest(bytes.fromhex(key), process=ScriptedProcess)
        with contextlib.suppress(ConnectionError):
            await guests[key].serve(connection)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1000)
        listener.setblocking(False)
        print("ready", flush=True)

        async def accept() -> None:
            while True:
                connection, _ = await loop.sock_accept(listener)
                connection.setblocking(False)
                links.add(task := asyncio.create_task(play(connection)))
                task.add_done_callback(links.discard)

        accepting = asyncio.create_task(accept())
        await asyncio.to_thread(sys.stdin.read)
        for task in (accepting, *links):
            task.cancel()
        await asyncio.gather(accepting, *links, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
