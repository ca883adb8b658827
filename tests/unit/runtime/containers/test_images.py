"""Which image of a container type is built, and which is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from oubliette.config.container_options import ContainerOverrides
from oubliette.config.schema import Config, ContainersConfig
from oubliette.errors import ConfigError, InvalidParameter
from oubliette.records import Project
from oubliette.runtime.containers.base import Capabilities, Logs
from oubliette.runtime.containers.images import FOLDER, Imaging, built_from
from oubliette.runtime.containers.options import options_of

pytestmark = pytest.mark.anyio


class Standin:
    name = "docker"

    def __init__(self, *, images: bool = True) -> None:
        self.done: list[Any] = []
        self.folder: Path | None = None
        self.capabilities = Capabilities(
            survives_server=True,
            sockets_cross=True,
            network_none=True,
            network_host=True,
            images=images,
            uid_per_container=True,
            isolation="container",
        )

    async def build(
        self,
        image: str,
        folder: Path,
        *,
        timeout: float,
        arguments: dict[str, str],
        progress: Any = None,
    ) -> Logs:
        assert (folder / "Dockerfile").is_file()
        if progress is not None:
            progress("step 1 of 2: FROM")
        self.done.append(("build", image, timeout, arguments))
        self.folder = folder
        return Logs(text="built")

    async def pull(self, image: str, *, timeout: float, progress: Any) -> None:
        self.done.append(("pull", image, timeout))
        progress("1 of 2 layers")
        progress("2 of 2 layers")


def imaging(runtime: Any, **fields: Any) -> Imaging:
    return Imaging(runtime, Config(containers=ContainersConfig(**fields)))


def typed(runtime: Any, **options: Any) -> Imaging:
    """With a container type `own` that has these options."""
    types = {"own": msgspec.convert(options, ContainerOverrides)}
    return Imaging(runtime, Config(container_types=types))


async def test_what_is_ours_is_built_and_never_fetched() -> None:
    runtime = Standin()
    ours = imaging(runtime, dev_image="localhost/dev:1", build_timeout_seconds=7.0)
    assert await ours.rebuild("dev") == "built"
    assert await ours.refresh("dev") is None
    assert runtime.done == [("build", "localhost/dev:1", 7.0, {})]
    assert runtime.folder == FOLDER


async def test_what_is_a_registrys_is_fetched_and_never_built() -> None:
    runtime = Standin()
    theirs = imaging(runtime, image="docker.io/library/python:3", pull_timeout_seconds=8.0)
    assert await theirs.refresh("base") == "1 of 2 layers\n2 of 2 layers\n"
    with pytest.raises(InvalidParameter, match="registry") as caught:
        await theirs.rebuild("base")
    assert caught.value.field == "container_type"
    assert runtime.done == [("pull", "docker.io/library/python:3", 8.0)]


async def test_a_type_may_have_a_dockerfile_of_its_own_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    runtime = Standin()
    own = typed(
        runtime,
        image="registry.example/own:1",
        build_dir=str(tmp_path),
        build_args=["BASE_IMAGE=a:1", "FLAGS=-x=1", "EMPTY="],
    )
    assert await own.rebuild("own") == "built"
    arguments = {"BASE_IMAGE": "a:1", "FLAGS": "-x=1", "EMPTY": ""}
    assert runtime.done == [("build", "registry.example/own:1", 1800.0, arguments)]
    assert runtime.folder == tmp_path
    assert await own.refresh("own") is None


async def test_a_folder_without_a_dockerfile_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Dockerfile") as caught:
        await typed(Standin(), build_dir=str(tmp_path)).rebuild("own")
    assert "container_types.own.build_dir" in (caught.value.hint or "")


async def test_an_image_of_a_project_is_its_own() -> None:
    types = {"own": msgspec.convert({"image": "own:1"}, ContainerOverrides)}
    projects = {"shop": msgspec.convert({"image": "shop:1"}, ContainerOverrides)}
    both = Imaging(Standin(), Config(container_types=types, project_containers=projects))  # type: ignore[arg-type]
    project = Project(id="p", name="shop", created_at=0.0, default_workspace_id="w", uid=1)
    assert both.image_of("own") == "own:1"
    assert both.image_of("own", project) == "shop:1"
    assert both.image_of("base", msgspec.structs.replace(project, name="x")) != "shop:1"


async def test_a_runtime_without_images_says_so() -> None:
    with pytest.raises(InvalidParameter, match="no images"):
        await imaging(Standin(images=False)).rebuild("dev")


async def test_who_asked_hears_how_far_it_is() -> None:
    heard: list[str] = []
    ours = imaging(Standin(), dev_image="localhost/dev:1", image="docker.io/library/python:3")
    await ours.rebuild("dev", heard.append)
    assert heard == ["step 1 of 2: FROM"]
    await ours.refresh("base", progress=heard.append)
    assert heard[1:] == ["1 of 2 layers", "2 of 2 layers"]


def test_what_an_image_is_built_from() -> None:
    assert built_from(options_of(Config(), "dev")) == str(FOLDER)
    fetched = Config(containers=ContainersConfig(image="docker.io/library/python:3"))
    assert built_from(options_of(fetched)) is None
