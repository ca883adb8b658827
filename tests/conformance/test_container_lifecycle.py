"""Every container runtime: made, started, looked at, stopped, removed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import stat
import subprocess

import pytest

from oubliette.errors import InvalidParameter, NotFound, RuntimeFailure
from oubliette.runtime.containers import LABEL_CONTAINER, LABEL_INSTANCE, Mount
from oubliette.runtime.guest import ControlLink, GuestImpostor, GuestRefused, GuestUnreachable
from tests.conformance.engines import SECONDS, Bench

pytestmark = pytest.mark.anyio


async def test_a_container_goes_from_created_to_running_to_exited(bench: Bench) -> None:
    spec = bench.spec()
    bench.made.append(spec.id)
    created = await bench.runtime.create(spec)
    assert (created.id, created.state) == (spec.id, "created")
    started = await bench.runtime.start(spec.id, key=b"k" * 32)
    assert started.state == "running"
    assert started.started_at is not None
    assert (await bench.runtime.inspect(spec.id)).labels == spec.labels
    stopped = await bench.runtime.stop(spec.id, timeout=5)
    assert (stopped.state, stopped.exit_code) == ("exited", bench.exit_code(0))
    again = await bench.runtime.start(spec.id, key=b"l" * 32)
    assert again.state == "running"
    await bench.runtime.remove(spec.id)
    with pytest.raises(NotFound):
        await bench.runtime.inspect(spec.id)
    await bench.runtime.remove(spec.id)


async def test_what_is_removed_leaves_nothing_behind(bench: Bench) -> None:
    running = await bench.start()
    await running.run("sh", "-c", "head -c 3000000 /dev/zero")
    await running.link.aclose()
    await bench.runtime.remove(running.spec.id)
    left = [path.name for path in bench.base.iterdir() if not path.name.startswith("kit-")]
    assert left == []


async def test_the_relay_listens_for_its_owner_only(bench: Bench) -> None:
    running = await bench.start()
    owner = os.geteuid() if bench.agent_uid is None else bench.agent_uid
    if bench.runtime.capabilities.sockets_cross:
        status = (running.spec.runtime_dir / "relay.sock").stat()
        assert stat.S_IMODE(status.st_mode) == 0o600
        # The host's own, or a published one: that is the server's, agents cannot reach it.
        published = bench.engine.name == "apple"
        assert status.st_uid == (os.geteuid() if published else owner)
    else:
        look = "import os, sys; s = os.stat(sys.argv[1]); print(s.st_mode & 0o777, s.st_uid)"
        seen = await running.python(look, running.info.inside.relay_socket)
        assert seen.text.split() == [str(0o600), str(owner)]
        assert not (running.spec.runtime_dir / "relay.sock").exists()
    # Nobody else can list or write the folder; only agents' own user may pass through it.
    assert stat.S_IMODE(running.spec.runtime_dir.stat().st_mode) & 0o066 == 0
    assert stat.S_IMODE(bench.base.stat().st_mode) & 0o066 == 0


async def test_the_key_is_gone_when_the_container_runs(bench: Bench) -> None:
    running = await bench.start()
    assert not (running.spec.runtime_dir / "key").exists()


async def test_a_server_without_the_key_is_not_let_in_and_learns_nothing(bench: Bench) -> None:
    running = await bench.start()
    with pytest.raises(GuestImpostor):
        await ControlLink.connect(bench.runtime.dial(running.info), b"x" * 32, epoch=2)
    assert not running.link.is_closed


async def test_a_newer_server_takes_the_link_over_and_an_older_one_is_refused(
    bench: Bench,
) -> None:
    running = await bench.start()
    newer = await bench.connect(running.spec, running.info, running.key, epoch=2)
    async with asyncio.timeout(SECONDS):
        await running.link.closed()
    with pytest.raises(GuestRefused, match="stale epoch"):
        await ControlLink.connect(bench.runtime.dial(running.info), running.key, epoch=1)
    assert not newer.link.is_closed


async def test_a_running_container_cannot_be_started_again(bench: Bench) -> None:
    running = await bench.start()
    with pytest.raises(RuntimeFailure, match="running"):
        await bench.runtime.start(running.spec.id, key=b"k" * 32)
    assert (await running.run("true")).exit is not None


async def test_watch_tells_when_and_how_a_container_ended(bench: Bench) -> None:
    running = await bench.start()
    watch = asyncio.create_task(bench.runtime.watch(running.spec.id))
    await running.link.drain()
    async with asyncio.timeout(SECONDS):
        info = await watch
    assert (info.state, info.exit_code) == ("exited", bench.exit_code(0))
    with pytest.raises(GuestUnreachable):
        await ControlLink.connect(bench.runtime.dial(info), running.key, epoch=2, timeout=2)


async def test_a_watch_that_is_given_up_ends_nothing(bench: Bench) -> None:
    running = await bench.start()
    watch = asyncio.create_task(bench.runtime.watch(running.spec.id))
    other = asyncio.create_task(bench.runtime.watch(running.spec.id))
    await running.run("true")
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert (await bench.runtime.inspect(running.spec.id)).state == "running"
    await bench.runtime.stop(running.spec.id)
    async with asyncio.timeout(SECONDS):
        assert (await other).state == "exited"


@pytest.mark.whole
async def test_a_host_that_hears_no_server_ends_by_itself(bench: Bench) -> None:
    running = await bench.start(orphan_grace=3.0)
    await running.link.aclose()
    async with asyncio.timeout(SECONDS):
        assert (await bench.runtime.watch(running.spec.id)).state == "exited"


async def test_a_container_killed_from_outside_is_seen_as_exited(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("sleep", "1000")
    await running.link.start(process)
    await bench.signal(running.info, signal.SIGKILL)
    async with asyncio.timeout(SECONDS):
        info = await bench.runtime.watch(running.spec.id)
        await running.link.closed()
    assert (info.state, info.exit_code) == ("exited", bench.exit_code(137))


async def test_a_host_that_hangs_is_killed_at_the_deadline_of_the_stop(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("sleep", "1000")
    await running.link.start(process)
    await bench.signal(running.info, signal.SIGSTOP)
    async with asyncio.timeout(SECONDS):
        info = await bench.runtime.stop(running.spec.id, timeout=0.2)
    assert (info.state, info.exit_code) == ("exited", bench.exit_code(137))


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_a_start_that_is_given_up_leaves_nothing_and_can_be_done_again(
    bench: Bench, steps: int
) -> None:
    spec = bench.spec()
    bench.made.append(spec.id)
    await bench.runtime.create(spec)
    start = asyncio.create_task(bench.runtime.start(spec.id, key=b"k" * 32))
    for _ in range(steps):
        await asyncio.sleep(0)
    given_up = start.cancel()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(start, return_exceptions=True)
    if not given_up:  # it was up already: this test had to wait for a processor
        assert start.result().state == "running"
        return
    assert start.cancelled()
    assert (await bench.runtime.inspect(spec.id)).state == "created"
    assert not (spec.runtime_dir / "key").exists()
    # Its host; an engine's own monitor, which names it too, may take a moment to go.
    label = f"{LABEL_CONTAINER}={spec.id}"
    found = subprocess.run(["pgrep", "-f", "--", label], capture_output=True, check=False)
    assert found.stdout == b""
    assert (await bench.runtime.start(spec.id, key=b"k" * 32)).state == "running"


@pytest.mark.parametrize("seed", [1, 2])
async def test_any_order_of_calls_and_servers_gives_the_states_that_it_should(
    bench: Bench, seed: int
) -> None:
    """A walk at random: what the runtime says of a container is what was done to it."""
    choose = random.Random(seed)
    expected: dict[str, str] = {}
    specs = {}
    others: list[Bench] = []
    now = bench
    for _ in range(25):
        act = choose.choice(["create", "start", "start", "stop", "kill", "remove", "server"])
        if act == "create" or not expected:
            spec = bench.spec()
            specs[spec.id] = spec
            bench.made.append(spec.id)
            expected[spec.id] = (await now.runtime.create(spec)).state
        elif act == "server":
            await now.runtime.aclose()
            now = Bench(bench.engine, bench.folder)
            others.append(now)
            found = {info.id: info.state for info in await now.runtime.adopt(bench.instance)}
            assert found == expected
        else:
            one = choose.choice(sorted(expected))
            if act == "start" and expected[one] != "running":
                expected[one] = (await now.runtime.start(one, key=b"k" * 32)).state
            elif act == "stop":
                await now.runtime.stop(one, timeout=choose.choice([0, 5]))
                expected[one] = "exited" if expected[one] == "running" else expected[one]
            elif act == "kill" and expected[one] == "running":
                await now.signal(await now.runtime.inspect(one), signal.SIGKILL)
                async with asyncio.timeout(SECONDS):
                    await now.runtime.watch(one)
                expected[one] = "exited"
            elif act == "remove":
                await now.runtime.remove(one)
                del expected[one]
        assert {one: (await now.runtime.inspect(one)).state for one in expected} == expected
    for one in sorted(expected):
        await now.runtime.remove(one)
    left = [path.name for path in bench.base.iterdir() if not path.name.startswith("kit-")]
    assert left == []
    for other in others:
        await other.aclose()


async def test_two_stops_and_a_remove_at_once_end_well(bench: Bench) -> None:
    running = await bench.start()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(
            bench.runtime.stop(running.spec.id),
            bench.runtime.stop(running.spec.id, timeout=0),
            bench.runtime.remove(running.spec.id),
        )
    assert not running.spec.runtime_dir.exists()


async def test_the_end_of_the_logs_can_be_read(bench: Bench) -> None:
    running = await bench.start()
    logs = await bench.runtime.logs(running.spec.id, tail=5)
    assert isinstance(logs.text, str)
    with pytest.raises(NotFound):
        await bench.runtime.logs("cont_unknown")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"network": "a-network-of-nobody"}, "network"),
        ({"mounts": (Mount(source=None, target="/workspace"),)}, "mounts"),
        ({"mounts": (Mount(source=True, target="../x"),)}, "mounts"),
    ],
)
async def test_a_spec_that_cannot_be_honoured_is_refused_by_field(
    bench: Bench, change: dict, field: str
) -> None:
    if "mounts" in change:
        mount = change["mounts"][0]
        source = bench.project() if mount.source else bench.folder / "missing"
        change = {"mounts": (Mount(source, mount.target),)}
    spec = bench.spec(**change)
    with pytest.raises(InvalidParameter) as caught:
        await bench.runtime.create(spec)
    assert caught.value.field == field


async def test_labels_that_would_not_be_found_again_are_refused(bench: Bench) -> None:
    import msgspec

    spec = bench.spec()
    for labels in ({LABEL_CONTAINER: spec.id}, {LABEL_INSTANCE: "i", LABEL_CONTAINER: "other"}):
        with pytest.raises(InvalidParameter) as caught:
            await bench.runtime.create(msgspec.structs.replace(spec, labels=labels))
        assert caught.value.field == "labels"


async def test_an_unknown_container_is_not_found(bench: Bench) -> None:
    for call in (bench.runtime.inspect, bench.runtime.stop, bench.runtime.watch):
        with pytest.raises(NotFound):
            await call("cont_unknown")
    await bench.runtime.remove("cont_unknown")


async def test_a_read_only_mount_cannot_be_written(isolated: Bench) -> None:
    bench = isolated
    data = bench.project()
    (data / "given").write_text("seen", encoding="utf-8")
    (data / "given").chmod(0o644)
    spec = bench.spec(
        mounts=(Mount(bench.project(), "/workspace"), Mount(data, "/data", read_only=True))
    )
    running = await bench.start(spec)
    result = await running.run("sh", "-c", "cat /data/given; echo no > /data/given")
    assert result.text == "seen"
    assert result.exit is not None
    assert result.exit.code != 0
    assert (data / "given").read_text(encoding="utf-8") == "seen"


async def test_what_an_agent_writes_is_seen_outside_and_belongs_to_its_user(bench: Bench) -> None:
    project = bench.project()
    running = await bench.start(bench.spec(mounts=(Mount(project, "/workspace"),)))
    result = await running.run("sh", "-c", "echo here > file")
    assert result.exit is not None
    assert result.exit.code == 0, result.err
    assert (project / "file").read_text(encoding="utf-8") == "here\n"
    expected = os.geteuid() if bench.agent_uid is None else bench.agent_uid
    assert (project / "file").stat().st_uid == expected


async def test_only_one_workspace_can_be_bound_where_it_is_documented(bench: Bench) -> None:
    """With isolation on, the container sees its own workspace and no other."""
    project = bench.project()
    mine = make_workspace(bench, project, "mine")
    make_workspace(bench, project, "other")
    target = "/workspace/workspaces/11111111-1111-4111-8111-111111111111"
    running = await bench.start(bench.spec(mounts=(Mount(mine, target),)))
    result = await running.run("sh", "-c", "pwd; echo ok > file; ls ..", cwd=target)
    assert (mine / "file").exists()
    assert result.text.splitlines()[0] == running.info.inside.path(target)
    if bench.engine.isolated:
        assert result.text.splitlines()[1:] == [target.rpartition("/")[2]]


def make_workspace(bench: Bench, project, name: str):
    from oubliette.runtime.containers.host_paths import make_owned

    return make_owned(project / "workspaces", name, uid=bench.agent_uid)
