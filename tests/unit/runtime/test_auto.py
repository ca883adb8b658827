"""Which runtime a server uses, and why (DESIGN 7.1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from oubliette.config import AppleConfig, Config, ContainersConfig, DockerConfig
from oubliette.errors import ConfigError
from oubliette.runtime.containers import auto
from oubliette.runtime.containers.port import Capabilities, RuntimeStatus

pytestmark = pytest.mark.anyio

HERE = Path()


class Standin:
    """A runtime as far as the choice looks at it."""

    def __init__(self, name: str, *, ok: bool, image: bool = True) -> None:
        self.name = name
        self.closed = False
        self._ok = ok
        self._image = image

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            survives_server=True,
            sockets_cross=True,
            network_none=True,
            network_host=True,
            images=self.name != "process",
            uid_per_container=True,
            isolation="container",
        )

    async def ping(self) -> RuntimeStatus:
        return RuntimeStatus(ok=self._ok, reason=f"no {self.name} here", remedy=f"get {self.name}")

    async def image_exists(self, image: str) -> bool:
        return self._image

    async def aclose(self) -> None:
        self.closed = True


def machine(monkeypatch: pytest.MonkeyPatch, **there: Standin) -> None:
    monkeypatch.setattr(auto, "make", lambda name, *_: there[name])


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto.platform, "system", lambda: "Linux")
    monkeypatch.setattr(auto.platform, "machine", lambda: "x86_64")


async def test_auto_takes_docker_before_podman_before_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {name: Standin(name, ok=True) for name in ("docker", "podman", "process")}
    machine(monkeypatch, **parts)
    runtime, why = await auto.choose(Config(), HERE, HERE, HERE)
    assert (runtime.name, why) == ("docker", "docker works")


async def test_auto_passes_over_what_does_not_work_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docker = Standin("docker", ok=False)
    podman = Standin("podman", ok=True, image=False)
    machine(monkeypatch, docker=docker, podman=podman, process=Standin("process", ok=True))
    runtime, why = await auto.choose(Config(), HERE, HERE, HERE)
    assert runtime.name == "process"
    assert "not docker: no docker here" in why
    assert "not podman: it has no image" in why
    assert docker.closed
    assert podman.closed


async def test_where_nothing_works_everything_is_named_with_the_last_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {name: Standin(name, ok=False) for name in ("docker", "podman", "process")}
    machine(monkeypatch, **parts)
    with pytest.raises(ConfigError, match="not docker.*not podman.*not process") as caught:
        await auto.choose(Config(), HERE, HERE, HERE)
    assert caught.value.hint == "get process"


@pytest.mark.parametrize(
    ("system", "machine_name", "first"),
    [
        ("Darwin", "arm64", "apple"),
        ("Darwin", "x86_64", "docker"),
        ("Linux", "arm64", "docker"),
        ("Linux", "aarch64", "docker"),
    ],
)
async def test_auto_takes_apple_first_where_there_can_be_one(
    monkeypatch: pytest.MonkeyPatch, system: str, machine_name: str, first: str
) -> None:
    monkeypatch.setattr(auto.platform, "system", lambda: system)
    monkeypatch.setattr(auto.platform, "machine", lambda: machine_name)
    machine(monkeypatch, **{name: Standin(name, ok=True) for name in auto.RUNTIMES})
    runtime, why = await auto.choose(Config(), HERE, HERE, HERE)
    assert (runtime.name, why) == (first, f"{first} works")


async def test_auto_says_why_it_is_not_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(auto.platform, "machine", lambda: "arm64")
    apple = Standin("apple", ok=True, image=False)
    machine(monkeypatch, apple=apple, docker=Standin("docker", ok=True))
    runtime, why = await auto.choose(Config(), HERE, HERE, HERE)
    assert runtime.name == "docker"
    assert "not apple: it has no image" in why
    assert apple.closed
    config = Config(containers=ContainersConfig(runtime="apple"), apple=AppleConfig(path="/none"))
    monkeypatch.undo()
    with pytest.raises(
        ConfigError, match="apple runtime cannot be used.*/none is not there"
    ) as caught:
        await auto.choose(config, HERE, HERE, HERE)
    assert "apple.path" in (caught.value.hint or "")


async def test_what_is_asked_for_by_name_is_used_or_refused(tmp_path: Path) -> None:
    config = Config(
        containers=ContainersConfig(runtime="docker"),
        docker=DockerConfig(host=f"unix://{tmp_path}/away.sock"),
    )
    with pytest.raises(ConfigError, match="docker runtime cannot be used.*away"):
        await auto.choose(config, tmp_path, tmp_path, tmp_path)
    config = Config(containers=ContainersConfig(runtime="dcoker"))
    with pytest.raises(ConfigError, match="no runtime"):
        await auto.choose(config, tmp_path, tmp_path, tmp_path)
