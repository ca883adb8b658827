"""Which runtime a server uses, and why."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import structlog

from oubliette.config.schema import (
    AppleConfig,
    Config,
    ContainersConfig,
    DockerConfig,
    ProcessConfig,
)
from oubliette.errors import ConfigError
from oubliette.runtime.containers import registry, selection, server_runtime
from oubliette.runtime.containers.base import Capabilities, Logs, Progress, RuntimeStatus
from oubliette.runtime.containers.engine_errors import ImageError

pytestmark = [pytest.mark.anyio, pytest.mark.sandboxless]

HERE = Path()


class Standin:
    """A runtime as far as the choice looks at it."""

    def __init__(self, name: str, *, ok: bool, image: bool = True, fetches: bool = True) -> None:
        self.fetched: list[tuple[str, str]] = []
        self._fetches = fetches
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

    async def pull(self, image: str, *, progress: Progress, **_: object) -> None:
        self._fetch("pulled", image, progress)

    async def build(self, image: str, folder: Path, *, progress: Progress, **_: object) -> Logs:
        del folder
        self._fetch("built", image, progress)
        return Logs(text="")

    def _fetch(self, how: str, image: str, progress: Progress) -> None:
        if not self._fetches:
            raise ImageError("no such host", hint="mend the network")
        self.fetched.append((how, image))
        for line in ("1 of 2", "2 of 2"):
            progress(line)

    async def aclose(self) -> None:
        self.closed = True


def machine(monkeypatch: pytest.MonkeyPatch, **there: Standin) -> None:
    monkeypatch.setattr(selection, "make", lambda name, *_: there[name])


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


async def test_auto_takes_docker_before_podman_before_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {name: Standin(name, ok=True) for name in ("docker", "podman", "process")}
    machine(monkeypatch, **parts)
    runtime, why = await selection.choose(Config(), HERE, HERE, HERE)
    assert (runtime.name, why) == ("docker", "docker works")


async def test_auto_passes_over_what_does_not_work_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docker = Standin("docker", ok=False)
    podman = Standin("podman", ok=False)
    machine(monkeypatch, docker=docker, podman=podman, process=Standin("process", ok=True))
    runtime, why = await selection.choose(Config(), HERE, HERE, HERE)
    assert runtime.name == "process"
    assert "not docker: no docker here" in why
    assert "not podman: no podman here" in why
    assert docker.closed
    assert podman.closed


@pytest.mark.parametrize("image", ["registry.example/it:1", "localhost/it:1"])
async def test_an_engine_without_the_image_fetches_it_and_says_how_far_that_is(
    monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    parts = {
        "docker": Standin("docker", ok=True, image=False),
        "podman": Standin("podman", ok=False),
        "process": Standin("process", ok=True),
    }
    machine(monkeypatch, **parts)
    config = Config(containers=ContainersConfig(image=image))
    with structlog.testing.capture_logs() as told:
        runtime, why = await selection.choose(config, HERE, HERE, HERE)
    assert (runtime.name, why) == ("docker", "docker works, and its image was fetched")
    assert parts["docker"].fetched == [("built" if "localhost" in image else "pulled", image)]
    assert [each["progress"] for each in told if "progress" in each] == ["1 of 2", "2 of 2"]


async def test_an_engine_that_has_the_image_comes_before_one_that_would_have_to_fetch_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docker = Standin("docker", ok=True, image=False)
    machine(monkeypatch, docker=docker, podman=Standin("podman", ok=True))
    runtime, why = await selection.choose(Config(), HERE, HERE, HERE)
    assert runtime.name == "podman"
    assert "not docker: it has no image" in why
    assert not docker.fetched


async def test_an_image_that_cannot_be_fetched_ends_the_start_and_is_no_reason_for_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docker = Standin("docker", ok=True, image=False, fetches=False)
    parts = {"podman": Standin("podman", ok=False), "process": Standin("process", ok=True)}
    machine(monkeypatch, docker=docker, **parts)
    with pytest.raises(
        ConfigError, match="docker works, but has no image .* no such host"
    ) as caught:
        await selection.choose(Config(), HERE, HERE, HERE)
    assert "mend the network; docker pull " in (caught.value.hint or "")
    assert "--runtime process" in (caught.value.hint or "")
    assert docker.closed


def auto_of(sandbox: Literal["bubblewrap", "best-effort"] = "bubblewrap") -> Config:
    return Config(process=ProcessConfig(sandbox=sandbox))


@pytest.mark.parametrize(
    ("before", "now", "sandbox"),
    [
        ("docker", "process", "bubblewrap"),
        ("podman", "process", "best-effort"),
        ("bubblewrap", "process", "best-effort"),
    ],
)
def test_auto_gives_a_home_no_weaker_wall_than_it_had(
    tmp_path: Path, before: str, now: str, sandbox: Any
) -> None:
    config = auto_of(sandbox)
    (tmp_path / "runtime").write_text(before + "\n")
    with pytest.raises(ConfigError, match=f"{sandbox} .* than {before}.*: not docker") as caught:
        server_runtime.check(tmp_path, now, config, "not docker")
    assert "--runtime process" in (caught.value.hint or "")
    named = msgspec.structs.replace(config, containers=ContainersConfig(runtime="process"))
    server_runtime.check(tmp_path, now, named, "")
    server_runtime.remember(tmp_path, now, named)
    server_runtime.check(tmp_path, now, config, "")  # from now on it is what the home has


@pytest.mark.parametrize(
    ("before", "now"),
    [(None, "process"), ("docker", "podman"), ("bubblewrap", "docker"), ("x", "process")],
)
def test_a_wall_as_good_as_before_is_taken(tmp_path: Path, before: str | None, now: str) -> None:
    if before is not None:
        (tmp_path / "runtime").write_text(before)
    server_runtime.check(tmp_path, now, auto_of(), "")
    server_runtime.remember(tmp_path, now, auto_of())
    assert server_runtime.recall(tmp_path) == ("bubblewrap" if now == "process" else now)
    assert (tmp_path / "runtime").stat().st_mode & 0o777 == 0o600


async def test_where_nothing_works_everything_is_named_with_the_last_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {name: Standin(name, ok=False) for name in ("docker", "podman", "process")}
    machine(monkeypatch, **parts)
    with pytest.raises(ConfigError, match="not docker.*not podman.*not process") as caught:
        await selection.choose(Config(), HERE, HERE, HERE)
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
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine_name)
    machine(monkeypatch, **{name: Standin(name, ok=True) for name in registry.BUILT_IN})
    runtime, why = await selection.choose(Config(), HERE, HERE, HERE)
    assert (runtime.name, why) == (first, f"{first} works")


async def test_auto_says_why_it_is_not_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    apple = Standin("apple", ok=True, image=False)
    machine(monkeypatch, apple=apple, docker=Standin("docker", ok=True))
    runtime, why = await selection.choose(Config(), HERE, HERE, HERE)
    assert runtime.name == "docker"
    assert "not apple: it has no image" in why
    assert apple.closed
    config = Config(containers=ContainersConfig(runtime="apple"), apple=AppleConfig(path="/none"))
    monkeypatch.undo()
    with pytest.raises(
        ConfigError, match="apple runtime cannot be used.*/none is not there"
    ) as caught:
        await selection.choose(config, HERE, HERE, HERE)
    assert "apple.path" in (caught.value.hint or "")


async def test_what_is_asked_for_by_name_is_used_or_refused(tmp_path: Path) -> None:
    config = Config(
        containers=ContainersConfig(runtime="docker"),
        docker=DockerConfig(host=f"unix://{tmp_path}/away.sock"),
    )
    with pytest.raises(ConfigError, match="docker runtime cannot be used.*away"):
        await selection.choose(config, tmp_path, tmp_path, tmp_path)
    config = Config(containers=ContainersConfig(runtime="dcoker"))
    with pytest.raises(ConfigError, match="no runtime"):
        await selection.choose(config, tmp_path, tmp_path, tmp_path)
