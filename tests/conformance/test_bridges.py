"""Links over an engine's exec: what is theirs alone. The suite itself runs on `docker-bridged`."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.docker.address import find
from oubliette.runtime.containers.docker.runtime import DockerRuntime
from oubliette.runtime.guest import Exit
from tests.conformance.engines import ENGINES, SECONDS, Bench, Engine, image, zipapp
from tests.conformance.tls_proxy import certify, proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conformance.engines import Running

pytestmark = [pytest.mark.anyio, pytest.mark.requires("docker")]

BRIDGES = """
import os, sys
own = os.getpid()
for pid in os.listdir("/proc"):
    if not pid.isdigit() or int(pid) == own:
        continue
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    except OSError:
        continue
    if b"bridge" in words:
        said = [pid]
        for name in ("fd/0", "fd/1", "mem", "environ"):
            try:
                os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_NONBLOCK))
                said.append(name)
            except PermissionError:
                said.append("refused")
        print(*said)
"""


@pytest.fixture
async def bridged(anyio_backend: str) -> AsyncIterator[Bench]:
    bench = Bench(next(engine for engine in ENGINES if engine.name == "docker-bridged"))
    try:
        yield bench
    finally:
        await bench.aclose()


async def bridges(running: Running) -> list[list[str]]:
    """The bridges in a container, each with what an agent could open of it."""
    result = await running.python(BRIDGES)
    assert result.exit == Exit(code=0), result.err
    return [line.split() for line in result.text.splitlines()]


async def test_an_agent_can_open_nothing_of_a_bridge(bridged: Bench) -> None:
    """It carries the links of others; only its group is another than the agents'."""
    running = await bridged.start()
    found = await bridges(running)
    assert found
    for _, *seen in found:
        assert seen == ["refused"] * 4


async def test_a_link_that_ends_takes_its_bridge_along(bridged: Bench) -> None:
    running = await bridged.start()
    async with asyncio.timeout(SECONDS):
        links = [await running.link.upstream(f"sess_{number}", "proj", 0) for number in range(3)]
        # With that of the control link, and maybe of the link that reads the answer.
        assert len(await bridges(running)) in (4, 5)
        for _, writer in links:
            writer.close()
        while len(await bridges(running)) > 2:
            pass


async def test_many_links_open_at_once(bridged: Bench) -> None:
    running = await bridged.start()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*(running.run("echo", str(n)) for n in range(20)))
    assert [int(result.text) for result in results] == list(range(20))


async def test_nothing_of_the_relay_is_on_this_side(bridged: Bench) -> None:
    running = await bridged.start()
    assert list(running.spec.runtime_dir.iterdir()) == []
    assert not bridged.runtime.capabilities.sockets_cross
    logs = await bridged.runtime.logs(running.spec.id)
    assert logs.text == "ready\n"


async def test_containers_keep_their_way_when_the_setting_changes(bridged: Bench) -> None:
    """Those that were made for bridges are reached by bridges, the others by their sockets too."""
    running = await bridged.start()
    await running.link.aclose()
    plain = next(engine for engine in ENGINES if engine.name == "docker")
    other = Bench(plain, bridged.folder)
    try:
        (found,) = await other.runtime.adopt(bridged.instance)
        assert other.runtime.capabilities.sockets_cross
        again = await other.connect(running.spec, found, running.key, epoch=2)
        assert (await again.run("echo", "here")).text == "here\n"
        await again.link.aclose()
        await other.runtime.stop(running.spec.id)
        assert (await other.runtime.start(running.spec.id, key=b"k" * 32)).state == "running"
    finally:
        await other.aclose()


# ---------------------------------------------------------------- engines by TCP and TLS


@pytest.fixture
def certificates() -> Path:
    return proxy(find("docker").path or "").folder


@pytest.fixture
def by_tls(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The variables that lead the docker CLI to the engine by TLS; its address."""
    at = proxy(find("docker").path or "")
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{at.port}")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    return f"tcp://127.0.0.1:{at.port}"


async def test_the_docker_clis_variables_lead_to_an_engine_by_tls_whose_links_are_bridged(
    by_tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Meant for the web; requests would take it for the engine too.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    there = Engine(
        "docker", lambda base: DockerRuntime(base, zipapp()), image=lambda: image("docker")
    )
    bench = Bench(there)
    try:
        running = await bench.start()
        assert not bench.runtime.capabilities.sockets_cross
        watch = asyncio.create_task(bench.runtime.watch(running.spec.id))
        assert (await running.run("cat", stdin=b"through")).text == "through"
        await bench.runtime.stop(running.spec.id)
        async with asyncio.timeout(SECONDS):
            assert (await watch).state == "exited"
    finally:
        await bench.aclose()


async def test_a_context_leads_to_an_engine_with_its_own_certificates(
    by_tls: str, certificates: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name)
    digest = hashlib.sha256(b"far").hexdigest()
    meta = tmp_path / "contexts" / "meta" / digest
    meta.mkdir(parents=True)
    endpoint = {"Host": by_tls, "SkipTLSVerify": False}
    (meta / "meta.json").write_text(
        json.dumps({"Name": "far", "Metadata": {}, "Endpoints": {"docker": endpoint}})
    )
    tls = tmp_path / "contexts" / "tls" / digest / "docker"
    tls.mkdir(parents=True)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tls / name).symlink_to(certificates / name)
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "far"}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    runtime = DockerRuntime(tmp_path, zipapp())
    try:
        status = await runtime.ping()
        assert status.ok, status
        assert runtime._engine.where == by_tls
    finally:
        await runtime.aclose()


async def test_an_engine_with_a_strangers_certificate_is_not_talked_to(
    by_tls: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certify(tmp_path)
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    runtime = DockerRuntime(tmp_path, zipapp())
    try:
        status = await runtime.ping()
        assert not status.ok
        assert by_tls in (status.reason or "")
        assert "certificate" in (status.reason or "").lower()
    finally:
        await runtime.aclose()


async def test_an_engine_of_another_machine_that_has_none_of_our_folders_says_so(
    bridged: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played by folders that are gone when the engine looks for them."""
    from oubliette.errors import RuntimeFailure
    from oubliette.runtime.containers.docker import create_body

    real = create_body.request

    def elsewhere(*arguments, **named):
        body = real(*arguments, **named)
        body["HostConfig"]["Mounts"][0]["Source"] = "/no-such-folder-there"
        return body

    monkeypatch.setattr(create_body, "request", elsewhere)
    await bridged.runtime.ping()
    with pytest.raises(RuntimeFailure, match="does not see this server's folders") as caught:
        await bridged.runtime.create(bridged.spec())
    assert "File sharing" in (caught.value.hint or "")
