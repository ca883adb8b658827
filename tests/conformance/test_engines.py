"""Engines with images: what is theirs alone."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette import ids
from oubliette.errors import ContainerLost, InvalidParameter, RuntimeFailure
from oubliette.runtime.containers import ContainerLimits, dockerfile
from oubliette.runtime.containers.base import Hardening
from oubliette.runtime.containers.docker.runtime import DockerRuntime
from oubliette.runtime.guest import Exit
from tests.conformance.engines import SECONDS, Bench, container_program, zipapp
from tests.images import ensure_image

if TYPE_CHECKING:
    from tests.conformance.engines import Engine, Running

pytestmark = pytest.mark.anyio

DOCKERFILE = Path(dockerfile.__file__).parent


@pytest.fixture
def imaged(bench: Bench) -> Bench:
    """The bench of an engine that has images."""
    assert bench.runtime.capabilities.images
    return bench


@pytest.fixture
def docker_api(imaged: Bench) -> Bench:
    """The bench of an engine that speaks docker's API."""
    runtime_of(imaged)
    return imaged


def runtime_of(bench: Bench) -> DockerRuntime:
    assert isinstance(bench.runtime, DockerRuntime)
    return bench.runtime


async def raw(bench: Bench, act: Any, *arguments: Any, **named: Any) -> Any:
    """Behind our back: a call of the engine itself."""
    return await runtime_of(bench)._engine.call(
        "be another program", functools.partial(act, *arguments, **named)
    )


async def remove_behind(bench: Bench, running: Running) -> None:
    """Behind our back: the container is gone."""
    if bench.engine.name == "apple":
        await container_program("delete", "--force", running.info.handle["name"])
        return
    engine_id = running.info.handle["engine_id"]
    await raw(bench, lambda api: api.remove_container(engine_id, force=True))


async def text(running: Running, source: str) -> str:
    result = await running.python(source)
    assert result.exit == Exit(code=0), result.err
    return result.text.strip()


async def test_everything_is_closed_that_need_not_be_open(docker_api: Bench) -> None:
    limits = ContainerLimits(memory_bytes=256 << 20, cpus=0.5, pids=64, tmp_bytes=32 << 20)
    running = await docker_api.start(limits=limits)
    status = await text(running, "print(open('/proc/self/status').read())")
    rows = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(rows["CapBnd"], 16) == 0
    assert rows["Seccomp"] == "2"
    assert await text(running, "print(open('/proc/1/comm').read())") != "python3"
    shown = await raw(
        docker_api, lambda api: api.inspect_container(running.info.handle["engine_id"])
    )
    host = shown["HostConfig"]
    assert shown["Config"]["User"].startswith(f"{docker_api.agent_uid}")
    assert host["ReadonlyRootfs"] is True
    assert host["RestartPolicy"]["Name"] in ("no", "")
    assert not host["Privileged"]
    assert host["Memory"] == 256 << 20
    assert host["PidsLimit"] == 64
    assert host["NanoCpus"] == 500_000_000
    mounts = await text(running, "print(open('/proc/mounts').read())")
    tmp = next(line.split() for line in mounts.splitlines() if line.split()[1] == "/tmp")
    assert tmp[2] == "tmpfs"
    assert {"nosuid", "nodev"} <= set(tmp[3].split(","))
    assert "noexec" not in tmp[3].split(",")


async def test_what_is_limited_stays_limited(imaged: Bench) -> None:
    limits = ContainerLimits(memory_bytes=128 << 20, pids=24, tmp_bytes=4 << 20)
    running = await imaged.start(limits=limits)
    forks = """
import os, time
made = []
try:
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            time.sleep(100)
        made.append(pid)
except BlockingIOError:
    pass
print(len(made))
for pid in made:
    os.kill(pid, 9)
"""
    assert 0 < int(await text(running, forks)) < 24
    full = "import errno\ntry:\n open('/tmp/x','wb').write(b'x' * (5 << 20))\nexcept OSError as e:\n print(errno.errorcode[e.errno])"
    assert await text(running, full) == "ENOSPC"
    greedy = await running.python("x = b'x' * (512 << 20)")
    assert greedy.exit is not None
    assert greedy.exit.code != 0


async def test_a_container_that_somebody_else_removes_is_lost(imaged: Bench) -> None:
    running = await imaged.start()
    watch = asyncio.create_task(imaged.runtime.watch(running.spec.id))
    other = asyncio.create_task(running.link.closed())
    await remove_behind(imaged, running)
    async with asyncio.timeout(SECONDS):
        await other
        # Seen as ended if it was looked at before it was gone altogether.
        try:
            assert (await watch).state == "exited"
        except ContainerLost as error:
            assert "somebody else" in error.message
    with pytest.raises(ContainerLost):
        await imaged.runtime.inspect(running.spec.id)
    await imaged.runtime.remove(running.spec.id)
    assert not running.spec.runtime_dir.exists()


async def test_two_servers_on_one_engine_leave_each_others_containers_alone(
    engine: Engine, imaged: Bench
) -> None:
    mine = await imaged.start()
    other = Bench(engine)
    try:
        theirs = await other.start()
        assert [info.id for info in await imaged.runtime.adopt(imaged.instance)] == [mine.spec.id]
        assert [info.id for info in await other.runtime.adopt(other.instance)] == [theirs.spec.id]
    finally:
        await other.aclose()
    assert (await mine.run("true")).exit == Exit(code=0)


async def test_a_folder_whose_container_was_never_made_is_cleared_at_adoption(
    imaged: Bench,
) -> None:
    from oubliette.runtime.containers import runtime_dirs

    spec = imaged.spec()
    runtime_dirs.make(spec, engine=imaged.runtime.name, uid=None)
    assert spec.runtime_dir.exists()
    assert await imaged.runtime.adopt(imaged.instance) == []
    assert not spec.runtime_dir.exists()
    assert not any(imaged.base.glob(f"{spec.runtime_dir.name}*"))


async def test_an_image_that_is_missing_is_named_with_what_to_do(imaged: Bench) -> None:
    name = "localhost/oubliette/no-such-image:1"
    assert not await imaged.runtime.image_exists(name)
    spec = msgspec.structs.replace(imaged.spec(), image=name)
    with pytest.raises(RuntimeFailure, match="no-such-image") as caught:
        await imaged.runtime.create(spec)
    assert "pull" in (caught.value.hint or "")
    assert not spec.runtime_dir.exists()
    with pytest.raises(RuntimeFailure, match="cannot be pulled"):
        await imaged.runtime.pull("127.0.0.1:1/nobody/nothing:1", timeout=SECONDS)


async def test_no_image_at_all_is_refused_by_field(imaged: Bench) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await imaged.runtime.create(msgspec.structs.replace(imaged.spec(), image=None))
    assert caught.value.field == "image"


async def test_a_start_that_fails_says_why_and_leaves_nothing(
    imaged: Bench, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.pyz"
    broken.write_text("import sys\nprint('this host is broken', flush=True)\nsys.exit(3)\n")
    runtime: Any = imaged.engine.make(imaged.base)
    runtime._zipapp = broken
    spec = imaged.spec()
    try:
        await runtime.create(spec)
        code = r"exit code 3\)" if runtime.capabilities.exit_codes else "ended before"
        with pytest.raises(RuntimeFailure, match=rf"{code}.*this host is broken"):
            await runtime.start(spec.id, key=b"k" * 32)
        assert (await runtime.inspect(spec.id)).state == "created"
        assert not (spec.runtime_dir / "key").exists()
        await runtime.remove(spec.id)
    finally:
        await runtime.aclose()
    assert not spec.runtime_dir.exists()


async def test_a_runtime_that_the_engine_has_not_got_is_refused_before_use(
    docker_api: Bench,
) -> None:
    """Podman takes an unknown name without a word and runs its default."""
    hard = Hardening(oci_runtime="no-such-runtime")
    runtime = DockerRuntime(
        docker_api.base, zipapp(), flavour=runtime_of(docker_api)._flavour, hard=hard
    )
    try:
        status = await runtime.ping()
        assert not status.ok
        assert "no-such-runtime" in (status.reason or "")
        with pytest.raises(RuntimeFailure, match="no-such-runtime"):
            await runtime.create(docker_api.spec())
    finally:
        await runtime.aclose()


async def test_the_dockerfile_builds_on_a_base_image_and_containers_of_it_run(
    engine: Engine, imaged: Bench
) -> None:
    name = f"localhost/oubliette/built:{ids.new_id(ids.INSTANCE)[-12:]}"
    assert engine.image is not None
    arguments = {"BASE_IMAGE": engine.image(), "INSTALL_PACKAGES": "0"}
    runtime: Any = imaged.runtime
    try:
        logs = await runtime.build(name, DOCKERFILE, timeout=60, arguments=arguments)
        assert "FROM" in logs.text
        running = await imaged.start(msgspec.structs.replace(imaged.spec(), image=name))
        assert (await running.run("git", "--version")).exit == Exit(code=0)
    finally:
        for container_id in imaged.made:
            await runtime.remove(container_id)
        if engine.speaks_docker:
            await raw(imaged, lambda api: api.remove_image(name, force=True))
        else:
            await container_program("image", "delete", "--force", name)


async def test_a_build_that_fails_says_what_failed(imaged: Bench, tmp_path: Path) -> None:
    assert imaged.engine.image is not None
    (tmp_path / "Dockerfile").write_text(f"FROM {imaged.engine.image()}\nRUN echo here; exit 7\n")
    with pytest.raises(RuntimeFailure, match="7"):
        await imaged.runtime.build("localhost/oubliette/failing:1", tmp_path, timeout=60)


async def test_the_spec_of_a_container_stands_in_its_labels_and_is_shown_to_nobody_else(
    docker_api: Bench,
) -> None:
    running = await docker_api.start()
    shown = await raw(
        docker_api, lambda api: api.inspect_container(running.info.handle["engine_id"])
    )
    labels = shown["Config"]["Labels"]
    assert running.spec.labels.items() <= labels.items()
    assert json.loads(labels["dev.oubliette.made-of"])["id"] == running.spec.id
    assert running.info.labels == running.spec.labels


@pytest.mark.parametrize("flavour", ["docker", "podman"])
async def test_an_engine_that_is_not_there_is_explained(tmp_path: Path, flavour: Any) -> None:
    runtime = DockerRuntime(
        tmp_path, zipapp(), flavour=flavour, host=f"unix://{tmp_path}/none.sock"
    )
    try:
        status = await runtime.ping()
        assert not status.ok
        assert "none.sock" in (status.reason or "")
        assert flavour in (status.remedy or "")
    finally:
        await runtime.aclose()


async def test_a_container_is_made_and_started_with_few_questions_to_its_engine(
    docker_api: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is milliseconds that the first session of a project waits."""
    runtime = runtime_of(docker_api)
    assert (await runtime.ping()).ok
    asked: list[str] = []
    call = runtime._engine.call

    async def count(step: str, *arguments: Any, **named: Any) -> Any:
        asked.append(step)
        return await call(step, *arguments, **named)

    monkeypatch.setattr(runtime._engine, "call", count)
    spec = docker_api.spec()
    made = await runtime.create(spec)
    started = await runtime.start(spec.id, key=b"k" * 32)
    questions = [step for step in asked if step != "ask for its version"]
    looked = await runtime.inspect(spec.id)
    await runtime.remove(spec.id)
    # One more look, where the host is faster than the engine's first answer about it.
    again = questions[3:]
    assert questions[:3] == ["create a container", "start the container", "look at a container"]
    assert again in ([], ["look at a container"])
    assert (made.state, started) == ("created", looked)


async def test_a_container_that_runs_is_not_started_again_whoever_started_it(
    docker_api: Bench,
) -> None:
    runtime = runtime_of(docker_api)
    spec = msgspec.structs.replace(docker_api.spec(), command=("sleep", "1000"))
    await runtime.create(spec)
    await runtime.start(spec.id, key=b"k" * 32)
    with pytest.raises(RuntimeFailure, match="is running already"):
        await runtime.start(spec.id, key=b"k" * 32)
    await runtime.stop(spec.id, timeout=0)
    await raw(docker_api, lambda api: api.start(f"oubliette-{spec.id}"))
    with pytest.raises(RuntimeFailure, match="is running already"):
        await runtime.start(spec.id, key=b"k" * 32)
    await runtime.remove(spec.id)


async def test_programs_beside_agents_keep_bytecode_that_their_image_has_not(
    docker_api: Bench,
) -> None:
    runtime = runtime_of(docker_api)
    image = await asyncio.to_thread(ensure_image, runtime.name, bytecode=False)
    running = await docker_api.start(msgspec.structs.replace(docker_api.spec(), image=image))
    kept = "find /tmp/.oubliette-bytecode-$(id -u) -name 'enum.*.pyc'"
    assert (await running.run("sh", "-c", kept)).exit != Exit(code=0)  # the host keeps nothing
    refused = await running.run(*running.info.inside.program("client"))
    assert refused.exit == Exit(code=2)  # there is no session for it
    found = await running.run("sh", "-c", kept)
    assert found.exit == Exit(code=0)
    assert found.out.count(b"enum") == 1
    mode = await running.run("sh", "-c", "stat -c %a /tmp/.oubliette-bytecode-*")
    assert mode.out == b"700\n"
