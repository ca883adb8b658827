"""Docker and podman fetch images from a registry: how far they are is told, and what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.errors import OublietteError
from oubliette.runtime.containers import engine_errors
from oubliette.runtime.containers.docker.runtime import DockerRuntime
from tests.conformance.engines import zipapp
from tests.conformance.registry import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

SECONDS = 40.0


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as started:
        yield started


@pytest.fixture(scope="module")
def podman_service() -> Iterator[str]:
    """A service of podman for which this machine's registries need no TLS."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    config = folder / "registries.conf"
    config.write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    address = folder / "podman.sock"
    service = subprocess.Popen(
        ["podman", "system", "service", "--time=0", f"unix://{address}"],
        env={**os.environ, "CONTAINERS_REGISTRIES_CONF": str(config)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"unix://{address}"
    finally:
        service.terminate()
        service.wait(SECONDS)
        shutil.rmtree(folder)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.requires(name)) for name in ("docker", "podman")]
)
async def runtime(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[DockerRuntime]:
    host = None
    if request.param == "podman":
        host = request.getfixturevalue("podman_service")
    made = DockerRuntime(tmp_path, zipapp(), flavour=request.param, host=host)
    try:
        await answers(made)
        yield made
    finally:
        await made.aclose()


async def answers(runtime: DockerRuntime) -> None:
    """Wait for an engine that was just started; the only way is to ask."""
    pause = asyncio.Event()
    async with asyncio.timeout(SECONDS):
        while not (await runtime.ping()).ok:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pause.wait(), 0.05)


async def forget(runtime: DockerRuntime, image: str) -> None:
    def remove(api: Any) -> None:
        api.remove_image(image, force=True)

    with contextlib.suppress(OublietteError):
        await runtime._engine.call("remove an image", remove)


async def test_a_pull_tells_how_far_it_is_and_then_the_image_is_there(
    runtime: DockerRuntime, registry: Registry
) -> None:
    lines: list[str] = []
    begun = asyncio.Event()

    def told(line: str) -> None:
        lines.append(line)
        if "MB" in line or "layers" in line:
            begun.set()

    registry.hold.clear()
    pull = asyncio.create_task(runtime.pull(registry.image, timeout=SECONDS, progress=told))
    try:
        async with asyncio.timeout(SECONDS):
            await begun.wait()
            assert not await runtime.image_exists(registry.image)
            registry.hold.set()
            await pull
        assert await runtime.image_exists(registry.image)
        known = await runtime.image(registry.image)
        assert known is not None
        assert known.id
        assert known.size_bytes
        assert lines[-1].startswith("2 of 2 layers") or "of" in lines[-1], lines
    finally:
        pull.cancel()
        await forget(runtime, registry.image)


async def test_an_image_that_the_registry_has_not_got_is_named(
    runtime: DockerRuntime, registry: Registry
) -> None:
    for missing in (f"{registry.address}/shop/agent:2", f"{registry.address}/shop/nothing:1"):
        with pytest.raises(engine_errors.ImageNotFound) as caught:
            await runtime.pull(missing, timeout=SECONDS)
        assert missing in caught.value.message
        assert registry.address in caught.value.message
        assert "containers.image" in (caught.value.hint or "")


async def test_a_registry_that_wants_a_login_is_named_with_the_command(
    runtime: DockerRuntime, registry: Registry
) -> None:
    registry.login = ("shop", "open sesame")
    with pytest.raises(engine_errors.RegistryDenied) as caught:
        await runtime.pull(registry.image, timeout=SECONDS)
    assert f"{runtime.name} login {registry.address}" in (caught.value.hint or "")


async def test_a_login_of_this_user_is_sent(
    runtime: DockerRuntime,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import base64
    import json

    registry.login = ("shop", "open sesame")
    login = base64.b64encode(b"shop:open sesame").decode()
    kept = {"auths": {registry.address: {"auth": login}}}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    again = DockerRuntime(
        tmp_path, zipapp(), flavour=runtime._flavour, host=runtime._engine._configured
    )
    try:
        await again.pull(registry.image, timeout=SECONDS)
        assert await again.image_exists(registry.image)
    finally:
        await forget(again, registry.image)
        await again.aclose()


async def test_a_registry_that_nobody_listens_at_is_named(runtime: DockerRuntime) -> None:
    with contextlib.closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        image = f"127.0.0.1:{closed.getsockname()[1]}/shop/agent:1"
        with pytest.raises(engine_errors.RegistryUnreachable) as caught:
            await runtime.pull(image, timeout=SECONDS)
    assert "network" in (caught.value.hint or "")


async def test_a_registry_that_is_silent_in_the_midst_of_a_layer_costs_the_timeout_and_no_more(
    runtime: DockerRuntime, registry: Registry
) -> None:
    registry.hold.clear()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(engine_errors.PullTimeout) as caught:
        await runtime.pull(registry.image, timeout=2.0)
    assert loop.time() - began < 10.0
    assert "containers.pull_timeout_seconds" in (caught.value.hint or "")
    registry.hold.set()
    assert not await runtime.image_exists(registry.image)
