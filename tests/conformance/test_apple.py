"""Apple's `container`: its traps, on the stand-in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.errors import InvalidParameter, RuntimeFailure
from oubliette.runtime.containers import ContainerLimits, Mount
from oubliette.runtime.containers.apple.runtime import AppleRuntime
from oubliette.runtime.containers.base import Hardening
from oubliette.runtime.guest import Exit, pieces
from oubliette.runtime.guest.control_link import ControlLink
from oubliette.runtime.guest.errors import GuestAbsent
from tests.conformance.apple_standin import grammar
from tests.conformance.engines import (
    ENGINES,
    SECONDS,
    STANDIN,
    Bench,
    container_program,
    read_all,
    zipapp,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.requires("apple-standin"), pytest.mark.timeout(90)]


END_CAT = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if open(f"/proc/{pid}/comm").read() == "cat\\n":
            os.kill(int(pid), 9)
            print("ended")
    except OSError:
        pass
"""


@pytest.fixture
async def apple(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> AsyncIterator[Bench]:
    monkeypatch.setenv("APPLE_STANDIN_LOG", str(tmp_path / "calls"))
    bench = Bench(next(engine for engine in ENGINES if engine.name == "apple"))
    bench.calls = tmp_path / "calls"
    try:
        yield bench
    finally:
        for variable in ("APPLE_STANDIN_STOPPED", "APPLE_STANDIN_VERSION"):
            monkeypatch.delenv(variable, raising=False)
        await bench.aclose()


def calls(bench: Any) -> list[list[str]]:
    return [json.loads(line) for line in bench.calls.read_text().splitlines()]


async def test_every_call_is_one_that_the_grammar_takes_with_options_first(apple: Bench) -> None:
    running = await apple.start()
    await apple.runtime.logs(running.spec.id)
    await apple.runtime.adopt(apple.instance)
    await apple.runtime.stop(running.spec.id, timeout=1.5)
    await apple.runtime.remove(running.spec.id)
    made = calls(apple)
    assert {grammar.parse(list(argv))[0] for argv in made} == {
        "create", "delete", "exec", "image inspect", "inspect", "list", "logs", "start", "stop",
        "system status", "system version",
    }  # fmt: skip
    assert not [argv for argv in made if "--" in argv]


async def test_everything_is_closed_that_can_be_closed_there(apple: Bench) -> None:
    limits = ContainerLimits(memory_bytes=256 << 20, cpus=0.5, pids=64, tmp_bytes=32 << 20)
    running = await apple.start(limits=limits)
    status = (await running.run("cat", "/proc/self/status")).text
    rows = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(rows["CapBnd"], 16) == 0
    argv = next(argv for argv in calls(apple) if argv[0] == "create")
    _, options, words = grammar.parse(argv)
    assert (options["cpus"], options["memory"], options["cap_drop"]) == (1, "256M", ["ALL"])
    assert options["read_only"]
    assert options["init"]
    assert options["network"] == ["none"]
    assert "nproc=64:64" in options["ulimit"]
    assert words[0] == running.spec.image
    mounts = (await running.run("cat", "/proc/mounts")).text
    tmp = next(line.split() for line in mounts.splitlines() if line.split()[1] == "/tmp")
    assert tmp[2] == "tmpfs"


async def test_the_spec_stands_in_a_label_and_the_key_nowhere(apple: Bench) -> None:
    running = await apple.start()
    (shown,) = json.loads(await container_program("inspect", running.info.handle["name"]))
    labels = shown["configuration"]["labels"]
    assert running.spec.labels.items() <= labels.items()
    assert json.loads(labels["dev.oubliette.made-of"])["id"] == running.spec.id
    assert list((running.spec.runtime_dir / "in").iterdir()) == []
    assert running.key.hex() not in apple.calls.read_text()


async def test_an_agent_that_ends_what_we_watch_with_neither_ends_nor_hides_anything(
    apple: Bench,
) -> None:
    running = await apple.start()
    watch = asyncio.create_task(apple.runtime.watch(running.spec.id))
    for _ in range(2):
        async with asyncio.timeout(SECONDS):
            while (await running.python(END_CAT)).text != "ended\n":
                pass
    assert not watch.done()
    await apple.signal(running.info, signal.SIGKILL)
    async with asyncio.timeout(SECONDS):
        assert (await watch).state == "exited"


async def test_a_published_socket_that_has_ended_is_a_host_that_is_not_there(
    apple: Bench,
) -> None:
    """A connection that cannot be passed on ends it: until the container is started again."""
    running = await apple.start()
    remove = running.process("rm", running.info.inside.relay_socket)
    await running.link.start(remove)  # told by the link that is there: no new one can be had
    assert (await running.event("exited", remove.proc)).exit == Exit(code=0)
    for _ in range(2):  # the first is accepted, and dropped; after it nothing listens
        with pytest.raises(Exception, match="closed|no guest|broke"):
            await ControlLink.connect(apple.runtime.dial(running.info), running.key, epoch=2)
    with pytest.raises(GuestAbsent):
        await ControlLink.connect(apple.runtime.dial(running.info), running.key, epoch=2)
    assert (await apple.runtime.inspect(running.spec.id)).state == "running"
    await apple.runtime.stop(running.spec.id, timeout=0)
    info = await apple.runtime.start(running.spec.id, key=b"n" * 32)
    again = await apple.connect(running.spec, info, b"n" * 32, epoch=3)
    assert (await again.run("true")).exit == Exit(code=0)


async def test_a_published_socket_that_has_ended_ends_no_agent_and_no_new_link(
    apple: Bench,
) -> None:
    """What the socket takes no more goes over an exec; only a new start would bring it back."""
    running = await apple.start()
    relay = running.info.inside.relay_socket
    talker = running.process("cat", proc="talker")
    await running.link.start(talker)
    for source, target in ((relay, f"{relay}.away"), (f"{relay}.away", relay)):
        move = running.process("mv", source, target)
        await running.link.start(move)
        assert (await running.event("exited", move.proc)).exit == Exit(code=0)
        if target != relay:
            with pytest.raises(Exception, match="closed|no guest|broke"):
                await ControlLink.connect(apple.runtime.dial(running.info), running.key, epoch=2)
    assert not (running.spec.runtime_dir / "relay.sock").exists()
    assert not running.link.is_closed
    data = bytes(range(256)) * 5000
    async with asyncio.timeout(SECONDS * 2):
        async with await running.link.attach("talker") as stream:
            for number, piece in enumerate(pieces(data), start=1):
                await stream.write(number, piece)
            await stream.write_eof(number + 1)
            result = await read_all(stream)
        newer = await apple.connect(running.spec, running.info, running.key, epoch=3)
        assert (await newer.run("true")).exit == Exit(code=0)
    assert (result.out, result.exit) == (data, Exit(code=0))


async def test_an_image_is_never_fetched_without_being_asked_for(apple: Bench) -> None:
    spec = msgspec.structs.replace(apple.spec(), image="127.0.0.1:1/nobody/nothing:1")
    with pytest.raises(RuntimeFailure, match="has no image") as caught:
        await apple.runtime.create(spec)
    assert "container image pull" in (caught.value.hint or "")
    assert not [argv for argv in calls(apple) if argv[0] == "create"]


async def test_a_gvisor_that_is_asked_for_is_refused(apple: Bench) -> None:
    runtime = AppleRuntime(
        apple.base, zipapp(), path=str(STANDIN), hard=Hardening(oci_runtime="runsc")
    )
    with pytest.raises(RuntimeFailure, match="OCI"):
        await runtime.create(apple.spec())


async def test_paths_that_cannot_be_said_are_refused_and_odd_ones_are_said(apple: Bench) -> None:
    colon = apple.project("a:b")
    (colon / "file").write_text("x")
    spec = apple.spec(mounts=(Mount(colon, "/workspace"),))
    running = await apple.start(spec)
    assert (await running.run("cat", "/workspace/file")).text == "x"
    with pytest.raises(InvalidParameter) as caught:
        await apple.runtime.create(apple.spec(mounts=(Mount(colon / "file", "/workspace/f"),)))
    assert caught.value.field == "mounts"


@pytest.mark.parametrize(
    ("variable", "value", "reason", "remedy"),
    [
        ("APPLE_STANDIN_STOPPED", "1", "do not run", "container system start"),
        ("APPLE_STANDIN_VERSION", "0.12.3", "0.12.3 is too old", "1.0 or later"),
    ],
)
async def test_what_cannot_be_used_is_explained(
    apple: Bench,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    reason: str,
    remedy: str,
) -> None:
    monkeypatch.setenv(variable, value)
    status = await apple.runtime.ping()
    assert not status.ok
    assert reason in (status.reason or "")
    assert remedy in (status.remedy or "")
    with pytest.raises(RuntimeFailure, match=reason):
        await apple.runtime.create(apple.spec())


async def test_services_that_stop_meanwhile_are_named_with_the_remedy(
    apple: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await apple.start()
    monkeypatch.setenv("APPLE_STANDIN_STOPPED", "1")
    with pytest.raises(Exception, match="services of container do not run") as caught:
        await apple.runtime.inspect(running.spec.id)
    assert "--enable-kernel-install" in getattr(caught.value, "hint", "")
    watch = asyncio.create_task(apple.runtime.watch(running.spec.id))
    await asyncio.sleep(0)
    monkeypatch.delenv("APPLE_STANDIN_STOPPED")
    await apple.runtime.stop(running.spec.id)
    async with asyncio.timeout(SECONDS):
        assert (await watch).state == "exited"


async def test_containers_of_both_generations_of_json_are_found(
    apple: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await apple.start()
    new = await apple.runtime.inspect(running.spec.id)
    monkeypatch.setenv("APPLE_STANDIN_VERSION", "0.12.3")
    old = await apple.runtime.inspect(running.spec.id)
    assert (old.state, old.labels) == ("running", running.spec.labels)
    assert old.started_at is not None
    assert new.started_at is not None
    assert abs(old.started_at - new.started_at) < 1
    assert [info.id for info in await apple.runtime.adopt(apple.instance)] == [running.spec.id]
    await container_program("delete", "--force", running.info.handle["name"])
    with pytest.raises(Exception, match="somebody else"):  # it says `[]` and exit code 0
        await apple.runtime.inspect(running.spec.id)


async def test_a_killed_server_leaves_no_call_behind(apple: Bench) -> None:
    running = await apple.start()
    name = running.info.handle["name"]
    await apple.runtime.aclose()

    def held() -> list[str]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if name in line and "exec" in line:
                found.append(pid)
        return found

    assert held() == []
    assert (await running.run("true")).exit == Exit(code=0)
