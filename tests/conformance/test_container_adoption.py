"""Every container runtime: what a killed server leaves is found again, and nothing else is.

After kill -9, containers are adopted by label, own orphans are reaped, never somebody
else's, and agents live on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.runtime.containers import LABEL_CONTAINER
from oubliette.runtime.guest import Exit
from tests.conformance.engines import SECONDS, Bench, Engine, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def server(
    bench: Bench, step: str, *, failpoints: str = "", network: str | None = None
) -> Iterator[dict[str, Any]]:
    """What another server has made; it was killed with -9 before this returns."""
    argv = [sys.executable, "-m", "tests.conformance.server_standin"]
    argv += [bench.engine.name, str(bench.folder), bench.instance, step]
    argv += [] if network is None else [network]
    env = {
        **os.environ,
        "OUBLIETTE_FAILPOINTS": failpoints,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=env)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        said = [child.stdout.readline()]
        if step == "start":
            said.append(child.stdout.readline())
        made = json.loads(b"".join(said).splitlines()[-1])
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    bench.made.append(made["id"])
    yield made


async def adopt(bench: Bench) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS):
        return {info.id: info for info in await bench.runtime.adopt(bench.instance)}


async def test_a_container_outlives_its_killed_server_with_all_that_runs_in_it(
    bench: Bench,
) -> None:
    assert bench.runtime.capabilities.survives_server
    with server(bench, "start") as made:
        info = (await adopt(bench))[made["id"]]
        assert info.state == "running"
        assert info.runtime_dir == Path(made["runtime_dir"])
        running = await bench.connect(None, info, bytes.fromhex(made["key"]), epoch=2)
        hello = running.link.hello
        talker = hello.process("talker")
        assert talker is not None
        assert (talker.state, talker.stdin, talker.out) == ("running", 1, (0, 16))
        async with asyncio.timeout(SECONDS):
            async with await running.link.attach("talker") as stream:
                await stream.write(2, b"after it\n")
                await stream.write_eof(3)
                result = await read_all(stream)
            assert result.text == "before the kill\nafter it\n"
            async with await running.link.attach("waiter") as stream:
                await stream.write(1, b"go\n")
                assert (await read_all(stream)).exit == Exit(code=3)
            await bench.runtime.stop(made["id"])
            ended = await bench.runtime.watch(made["id"])
        assert ended.state == "exited"


async def test_an_adopted_container_is_watched_like_any_other(bench: Bench) -> None:
    with server(bench, "start") as made:
        await adopt(bench)
        watch = asyncio.create_task(bench.runtime.watch(made["id"]))
        await asyncio.sleep(0)
        await bench.runtime.stop(made["id"], timeout=0)
        async with asyncio.timeout(SECONDS):
            assert (await watch).state == "exited"


async def test_what_was_made_and_never_started_is_found_and_can_be_removed(bench: Bench) -> None:
    with server(bench, "create") as made:
        info = (await adopt(bench))[made["id"]]
        assert info.state == "created"
        await bench.runtime.remove(made["id"])
        assert not Path(made["runtime_dir"]).exists()
        assert await adopt(bench) == {}


async def test_a_server_killed_in_the_middle_of_a_start_leaves_nothing_unknown(
    bench: Bench,
) -> None:
    with server(bench, "start", failpoints="container.launched=kill") as made:
        info = (await adopt(bench))[made["id"]]
        assert info.state == "running"
        await bench.runtime.remove(made["id"])
        # Its host; an engine's own monitor, which names it too, may take a moment to go.
        label = f"{LABEL_CONTAINER}={made['id']}"
        found = subprocess.run(["pgrep", "-f", "--", label], capture_output=True, check=False)
        assert found.stdout == b""


async def test_containers_of_another_instance_are_left_alone(bench: Bench) -> None:
    running = await bench.start()
    other = Bench(bench.engine, bench.folder)
    try:
        assert await other.runtime.adopt(ids.new_id(ids.INSTANCE)) == []
        assert [info.id for info in await other.runtime.adopt(bench.instance)] == [running.spec.id]
    finally:
        await other.aclose()
    assert (await running.run("true")).exit == Exit(code=0)


async def test_a_container_that_ended_without_a_server_is_found_as_exited(bench: Bench) -> None:
    running = await bench.start()
    other = Bench(bench.engine, bench.folder)
    await other.runtime.aclose()
    await bench.runtime.stop(running.spec.id)
    third = Bench(bench.engine, bench.folder)
    try:
        info = {info.id: info for info in await third.runtime.adopt(bench.instance)}
        assert info[running.spec.id].state == "exited"
        restarted = await third.runtime.start(running.spec.id, key=b"n" * 32)
        assert restarted.state == "running"
        await third.runtime.remove(running.spec.id)
    finally:
        await third.aclose()


async def test_adopting_twice_finds_the_same(bench: Bench) -> None:
    running = await bench.start()
    first, second = await adopt(bench), await adopt(bench)
    assert first == second
    assert first[running.spec.id].state == "running"


async def test_closing_the_runtime_ends_no_container(engine: Engine, bench: Bench) -> None:
    other = Bench(engine, bench.folder)
    other.instance = bench.instance
    running = await other.start()
    await running.link.aclose()
    await other.runtime.aclose()
    bench.made.append(running.spec.id)
    assert (await adopt(bench))[running.spec.id].state == "running"
    again = await bench.connect(running.spec, running.info, running.key, epoch=3)
    assert (await again.run("true")).exit == Exit(code=0)
