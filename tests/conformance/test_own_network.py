"""Sandboxes with a network of their own, by pasta: what they reach, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers.process import own_network, procfs, state_file
from tests.conformance.engines import ENGINES, SECONDS, Bench, Running
from tests.conformance.test_container_adoption import adopt, server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requires("bubblewrap"),
    pytest.mark.requires("pasta"),
]

REACH = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
        print("reached")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture
async def bench(anyio_backend: str) -> AsyncIterator[Bench]:
    made = Bench(ENGINES[0])
    try:
        yield made
    finally:
        await made.aclose()


@contextlib.contextmanager
def listening(host: str) -> Iterator[int]:
    with contextlib.closing(socket.create_server((host, 0))) as listener:
        yield listener.getsockname()[1]


def address() -> str:
    """An address of this machine that is none of its loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.connect(("192.0.2.1", 9))  # nothing is sent
        return link.getsockname()[0]


def script(bench: Bench, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """In the place of pasta."""
    path = bench.folder / "pasta"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bench.folder}:{os.environ['PATH']}")


async def reached(running: Running, *places: str) -> list[str]:
    result = await running.python(REACH, *places)
    return result.text.split()


def keeper(running: Running) -> procfs.HostProcess:
    """The process that keeps its network."""
    for kept in state_file.load_all(running.bench.base):
        if kept.spec.id == running.info.id:
            assert kept.keeper is not None
            return kept.keeper
    raise AssertionError(running.info.id)


async def gone(pids: list[int]) -> bool:
    """Whether processes end in time."""
    async with asyncio.timeout(SECONDS):
        for pid in pids:
            process = procfs.identify(pid)
            if process is not None:
                await procfs.ended(process)
    return True


async def test_the_loopback_interface_is_out_of_reach_but_for_the_ports_that_are_named(
    bench: Bench,
) -> None:
    with listening("127.0.0.1") as model, listening("127.0.0.1") as other:
        running = await bench.start(network="own", loopback_ports=(model,))
        places = (f"127.0.0.1:{model}", f"localhost:{model}", f"127.0.0.1:{other}")
        assert await reached(running, *places) == ["reached", "reached", "ConnectionRefusedError"]


async def test_other_addresses_and_the_name_server_are_reached(bench: Bench) -> None:
    with listening("0.0.0.0") as port:  # noqa: S104
        running = await bench.start(network="own")
        assert await reached(running, f"{address()}:{port}") == ["reached"]
    if own_network.names() is not None:
        servers = "[x for x in open('/etc/resolv.conf').read().split() if x[:1].isdigit()]"
        result = await running.python(f"print({servers})")
        assert result.text == f"['{own_network.NAMES}']\n"


async def test_what_ends_the_container_ends_its_network(bench: Bench) -> None:
    for way in ("stop", "remove", "kill", "the guest is killed"):
        running = await bench.start(network="auto")
        kept = keeper(running)
        pids = [kept.pid, *procfs.children(kept.pid)]
        assert len(pids) == 2, way
        name = running.info.id
        if way == "stop":
            await bench.runtime.stop(name)
        elif way == "remove":
            await bench.runtime.remove(name)
        elif way == "kill":
            os.kill(kept.pid, signal.SIGKILL)
        else:
            os.kill(running.info.handle["pid"], signal.SIGKILL)
        assert await gone(pids), way


async def test_a_start_that_is_cancelled_leaves_no_network(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = bench.folder / "begun"
    os.mkfifo(begun)
    script(bench, monkeypatch, f"echo $$ > {begun}; exec sleep 1000")
    start = asyncio.create_task(bench.start(network="own"))
    pid = int(await asyncio.to_thread(begun.read_text))
    start.cancel()
    await asyncio.wait([start])
    assert await gone([pid])


async def test_the_network_outlives_a_killed_server(bench: Bench) -> None:
    with listening("0.0.0.0") as port, server(bench, "start", network="own") as made:  # noqa: S104
        info = (await adopt(bench))[made["id"]]
        running = await bench.connect(bench.spec(), info, bytes.fromhex(made["key"]), epoch=2)
        assert await reached(running, f"{address()}:{port}") == ["reached"]
        kept = keeper(running)
        pids = [kept.pid, *procfs.children(kept.pid)]
        await bench.runtime.stop(info.id)
        assert await gone(pids)


async def test_where_pasta_fails_auto_says_so_and_own_refuses(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(bench, monkeypatch, "echo 'no luck today' >&2; exit 3")
    with listening("127.0.0.1") as port:
        running = await bench.start(network="auto")
        assert "no luck today" in str(running.info.warnings)
        assert await reached(running, f"127.0.0.1:{port}") == ["reached"]
    with pytest.raises(RuntimeFailure, match="no luck today"):
        await bench.start(network="own")
