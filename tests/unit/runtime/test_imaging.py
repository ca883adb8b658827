"""Which image of a container type is built, and which is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oubliette.config import Config, ContainersConfig
from oubliette.errors import InvalidParameter
from oubliette.runtime.containers.imaging import Imaging
from oubliette.runtime.containers.port import Capabilities, Logs

pytestmark = pytest.mark.anyio


class Standin:
    name = "docker"

    def __init__(self, *, images: bool = True) -> None:
        self.done: list[Any] = []
        self.capabilities = Capabilities(
            survives_server=True,
            sockets_cross=True,
            network_none=True,
            network_host=True,
            images=images,
            uid_per_container=True,
            isolation="container",
        )

    async def build(self, image: str, folder: Path, *, timeout: float) -> Logs:
        assert (folder / "Dockerfile").is_file()
        self.done.append(("build", image, timeout))
        return Logs(text="built")

    async def pull(self, image: str, *, timeout: float) -> None:
        self.done.append(("pull", image, timeout))


def imaging(runtime: Any, **fields: Any) -> Imaging:
    return Imaging(runtime, Config(containers=ContainersConfig(**fields)))


async def test_what_is_ours_is_built_and_never_fetched() -> None:
    runtime = Standin()
    ours = imaging(runtime, dev_image="localhost/dev:1", build_timeout_seconds=7.0)
    assert await ours.rebuild("dev") == "built"
    assert not await ours.refresh("dev")
    assert runtime.done == [("build", "localhost/dev:1", 7.0)]


async def test_what_is_a_registrys_is_fetched_and_never_built() -> None:
    runtime = Standin()
    theirs = imaging(runtime, image="docker.io/library/python:3", pull_timeout_seconds=8.0)
    assert await theirs.refresh("base")
    with pytest.raises(InvalidParameter, match="registry") as caught:
        await theirs.rebuild("base")
    assert caught.value.field == "container_type"
    assert runtime.done == [("pull", "docker.io/library/python:3", 8.0)]


async def test_a_runtime_without_images_says_so() -> None:
    with pytest.raises(InvalidParameter, match="no images"):
        await imaging(Standin(images=False)).rebuild("dev")
