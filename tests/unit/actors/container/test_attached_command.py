"""Commands whose streams a client has: a real guest, and a client whose bytes a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.container import attached_command
from oubliette.actors.container.attached_command import (
    AttachedCommand,
    CommandClient,
    run_attached,
)
from oubliette.actors.container.guest_connection import GuestConnection, GuestConnectionState
from oubliette.errors import ContainerLost, DeadlineExceeded, InvalidParameter, Unavailable
from oubliette.incontainer import wire
from oubliette.runtime.containers.base import ContainerInfo, Inside
from oubliette.runtime.guest import CommandFailed, ControlLink, Exit
from tests.unit.incontainer.hostclient import HostProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.anyio

SECONDS = 20.0


class Client(CommandClient):
    """Sends what a test gives it, and keeps what it gets."""

    def __init__(self) -> None:
        self.sends: asyncio.Queue[bytes] = asyncio.Queue()
        self.answers: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        """Whether it reads."""
        self.reads.set()
        self.out = b""
        self.got = 0
        self.ended: dict[str, Any] | None = None
        self._decoder = wire.FrameDecoder()
        self._changed = asyncio.Event()

    async def read(self) -> bytes:
        return await self.sends.get()

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        self.got += len(data)
        for frame in self._decoder.feed(data):
            if frame.kind == wire.EXIT:
                self.ended = json.loads(frame.payload)
            else:
                self.out = (self.out + frame.payload)[-4096:]
        self._changed.set()

    async def answer(self, answer: dict[str, Any]) -> None:
        self.answers.append(answer)

    def frame(self, kind: int, n: int = 0, payload: bytes = b"") -> None:
        self.sends.put_nowait(wire.encode_frame(kind, n, payload))

    async def sees(self, text: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            while text not in self.out:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    with HostProcess() as process:
        yield process


@pytest.fixture
async def state(host: HostProcess) -> AsyncIterator[GuestConnectionState]:
    host.epoch += 1
    link = await ControlLink.connect(Path(host.socket), host.key, epoch=host.epoch)
    made = GuestConnectionState()
    inside = Inside(env={"PATH": os.environ["PATH"]})
    info = ContainerInfo(id="c", state="running", labels={}, runtime_dir=host.folder, inside=inside)
    made.opened(link, info)
    async with link:
        yield made


def command(*argv: str, stdin: bool = True, window: tuple[int, int] | None = None) -> Any:
    return AttachedCommand(
        argv=argv, workspace="/tmp", working_dir="/tmp", env={}, stdin=stdin, window=window
    )


@contextlib.asynccontextmanager
async def running(
    state: GuestConnectionState, client: Client, wanted: AttachedCommand
) -> AsyncIterator[asyncio.Task[Exit | None]]:
    task = asyncio.create_task(run_attached(GuestConnection(state), wanted, client))
    try:
        async with asyncio.timeout(SECONDS):
            yield task
            await asyncio.wait([task])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_person_uses_a_terminal_whose_size_follows(state):
    client = Client()
    wanted = command("sh", "-c", "stty size; read x; stty size; exit 7", window=(30, 100))
    async with running(state, client, wanted) as task:
        await client.sees(b"30 100\r\n")
        client.frame(wire.RESIZE, 50 << 16 | 132)
        client.frame(wire.STDIN, payload=b"\n")
    assert task.result() == Exit(code=7)
    assert b"50 132\r\n" in client.out
    assert client.answers == [{"ok": {}}]
    assert client.ended == {"code": 7, "signal": None}


async def test_input_is_piped_and_its_end_too(state):
    client = Client()
    async with running(state, client, command("cat")) as task:
        client.frame(wire.STDIN, payload=b"one\n")
        await client.sees(b"one\n")
        client.frame(wire.EOF)
    assert task.result() == Exit(code=0)


async def test_a_client_that_goes_ends_its_command(state, host):
    client = Client()
    async with running(state, client, command("sh", "-c", "echo $$; exec sleep 600")) as task:
        await client.sees(b"\n")
        watched = os.pidfd_open(int(client.out))
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(watched, over.set)
        client.sends.put_nowait(b"")
        await over.wait()
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)
    assert task.result() is None


@pytest.mark.whole
async def test_a_flood_stays_in_the_container_while_the_client_does_not_read(state):
    client = Client()
    async with running(state, client, command("yes", window=(24, 80))) as task:
        await client.sees(b"y\r\n")
        client.reads.clear()
        async for event in state.link.events():
            if event.event == "spool_full":
                break
        held = await state.link.stats()
        got = client.got
        client.frame(wire.STDIN, payload=b"\x03")
        await state.link.stats()
        assert client.got == got
        assert held["spool_bytes"] <= 2 * attached_command.PIECE
        client.reads.set()
    assert task.result() == Exit(signal=2)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 20,
        wire.encode_frame(wire.STDOUT, 0, b"x"),
        wire.encode_frame(wire.EXIT, 0, b"{}"),
        wire.FRAME_HEAD.pack(wire.STDIN, 0, attached_command.PIECE + 1),
        wire.encode_frame(wire.RESIZE, 0),
        wire.encode_frame(wire.RESIZE, 4097 << 16 | 80),
        wire.encode_frame(wire.RESIZE, wire.MAX_COUNT),
    ],
    ids=["noise", "output", "exit", "large", "none", "high", "huge"],
)
async def test_a_client_that_sends_something_else_is_refused(state, sent):
    client = Client()
    async with running(state, client, command("cat", window=(24, 80))) as task:
        client.sends.put_nowait(sent)
    assert isinstance(task.exception(), InvalidParameter)


async def test_a_size_for_a_command_without_a_terminal_is_refused(state):
    client = Client()
    async with running(state, client, command("cat")) as task:
        client.frame(wire.RESIZE, 24 << 16 | 80)
    assert isinstance(task.exception(), InvalidParameter)


async def test_what_cannot_be_started_is_refused_before_any_frame(state):
    client = Client()
    for argv, named in ((("no-such-program",), "no-such-program"), (("sh\0",), "argv")):
        async with running(state, client, command(*argv)) as task:
            pass
        assert isinstance(task.exception(), CommandFailed)
        assert named in str(task.exception())
    assert client.answers == []


async def test_a_silent_command_is_ended(state, monkeypatch):
    monkeypatch.setattr(attached_command, "IDLE_SECONDS", 0.01)
    client = Client()
    async with running(state, client, command("sleep", "600")) as task:
        pass
    assert isinstance(task.exception(), DeadlineExceeded)


async def test_the_end_of_the_container_is_told(state, host):
    client = Client()
    argv = (sys.executable, "-c", "import os; os.write(1, b'up'); os.read(0, 1)")
    async with running(state, client, command(*argv)) as task:
        await client.sees(b"up")
        (ticket,) = await state.link.ticket("attach")
        proc = next(each for each in (await _procs(host)) if each["state"] == "running")["id"]
        _, writer = await asyncio.open_unix_connection(host.socket)
        writer.write(wire.Attach(proc, 2, 0, ticket).line())  # a newer link evicts ours
        await asyncio.wait([task])
        writer.close()
    assert isinstance(task.exception(), ContainerLost)


async def _procs(host: HostProcess) -> list[dict[str, Any]]:
    return await asyncio.to_thread(lambda: host.control(host.epoch).hello["procs"])


async def test_a_guest_of_an_earlier_version_is_to_be_restarted(state, monkeypatch):
    monkeypatch.setattr(wire, "PROTOCOL_MAX", 1)
    client = Client()
    for window in (None, (24, 80)):
        async with running(state, client, command("true", window=window)) as task:
            pass
        error = task.exception()
        assert isinstance(error, Unavailable)
        assert str(error.hint).startswith("restart the container")
