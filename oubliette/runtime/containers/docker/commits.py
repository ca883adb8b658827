"""Images that are made of containers: file systems that agents have changed, kept by an engine."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.errors import DeadlineExceeded, OublietteError, RuntimeFailure
from oubliette.runtime.containers.docker.client import EngineNotFound, EngineRefused
from oubliette.runtime.containers.docker.images import look
from oubliette.runtime.containers.docker.progress_stream import work
from oubliette.runtime.containers.labels import LABEL_BRIDGED, LABEL_MADE_OF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.containers.base import ImageInfo
    from oubliette.runtime.containers.docker.client import Engine

log = structlog.get_logger(__name__)

_OF_ITS_CONTAINER: Final = {LABEL_MADE_OF: "", LABEL_BRIDGED: "no"}
"""Labels that a container made of the image must not take for its own."""


async def commit(
    engine: Engine, engine_id: str, image: str, labels: Mapping[str, str], *, timeout: float
) -> ImageInfo:
    """Store the file system of a container as `image`; the container is paused meanwhile.

    Args:
        engine: The engine.
        engine_id: Its id of the container.
        image: Name with a tag.
        labels: Labels of the image; neither names nor values have white space or quotes.
        timeout: Seconds that it may take.

    Raises:
        DeadlineExceeded: it takes longer; the engine has stopped.
        RuntimeFailure: the engine cannot; has its reason.
    """
    repository, _, tag = image.rpartition(":")
    query = {
        "container": engine_id,
        "repo": repository,
        "tag": tag,
        "pause": "1",
        "changes": [
            f"LABEL {name}={value}" for name, value in {**labels, **_OF_ITS_CONTAINER}.items()
        ],
    }
    try:
        async with asyncio.timeout(timeout):
            # podman wants a configuration, even if it is empty.
            headers, body = {"Content-Type": "application/json"}, io.BytesIO(b"{}")
            async for _ in work(engine, "/commit", query, headers=headers, body=body):
                pass
    except TimeoutError as error:
        raise DeadlineExceeded(f"the container was not stored in {timeout:g} s") from error
    except (EngineRefused, EngineNotFound) as error:
        raise RuntimeFailure(f"the container cannot be stored: {error.message}") from error
    found = await look(engine, image)
    if found is None:
        raise RuntimeFailure(f"{engine.flavour} has stored the container, and has no {image}")
    return found


async def drop_labelled(engine: Engine, label: str, *, but: str | None = None) -> None:
    """Remove the images with the label `name=value` that no container uses, but for one name."""

    def names(api: Any) -> list[str]:
        listed: list[dict[str, Any]] = api.images(filters={"label": [label]})
        tags: list[list[str]] = [image.get("RepoTags") or [] for image in listed]
        return [tag for each in tags for tag in each if tag != but]

    def remove(api: Any, name: str) -> None:
        api.remove_image(name)

    for name in await engine.call("list images", names):
        try:
            await engine.call("remove an image", remove, name)
        except OublietteError as error:  # a container of it runs
            log.warning("an image is left", image=name, reason=error.message)
