"""Images of container types: as configured and as the engine has them.

The engine is queried directly, whether or not a server runs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette.cli.terminal import logging_config
from oubliette.cli.terminal.output import moment
from oubliette.config.container_options import BASE
from oubliette.errors import OublietteError
from oubliette.runtime.containers import images as container_images
from oubliette.runtime.containers import options as container_options
from oubliette.runtime.containers import registry, selection
from oubliette.runtime.containers.base import RuntimeStatus

if TYPE_CHECKING:
    from oubliette.config.schema import Config
    from oubliette.runtime.containers.base import ContainerRuntime, ImageInfo

SECONDS: Final = 10.0  # for an engine to answer, and again for all of its images
SHOWN: Final = 12  # characters of an image's id, in the table

_UNKNOWN: Final[dict[str, Any]] = dict.fromkeys(
    ("present", "id", "size_bytes", "built_at", "arrived_at")
)


def listing(config: Config) -> dict[str, Any]:
    """Return `{"engine": {"name", "version", "reason", "remedy"}, "images": […]}`.

    `reason` is why the images themselves are unknown; then `present` is None.
    """
    logging_config.configure("error", as_json=False)
    types = {
        kind: container_options.options_of(config, kind)
        for kind in container_options.types_of(config, images=True)
    }
    first = container_options.image_of(config, BASE)  # decides which engine `auto` takes
    others = {options.image for options in types.values()} - {first}
    engine, seen = asyncio.run(_ask(config, (first, *sorted(others))))
    images: list[dict[str, Any]] = [
        {
            "container_type": kind,
            "image": options.image,
            "built_from": container_images.built_from(options),
            **seen.get(options.image, _UNKNOWN),
        }
        for kind, options in types.items()
    ]
    return {"engine": engine, "images": images}


def table_of(found: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    name = str(found["engine"]["name"] or "engine").upper()
    head = ("TYPE", "IMAGE", "BUILT FROM", f"IN {name}", "ID", "SIZE", "BUILT", "ARRIVED")
    words = {True: "yes", False: "no", None: "?"}
    return head, [
        (
            each["container_type"],
            each["image"],
            each["built_from"],
            words[each["present"]],
            (each["id"] or "").removeprefix("sha256:")[:SHOWN],
            "" if each["size_bytes"] is None else f"{each['size_bytes'] / 1e6:.1f} MB",
            moment(each["built_at"]),
            moment(each["arrived_at"]),
        )
        for each in found["images"]
    ]


async def _ask(
    config: Config, images: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Query the engine that a server would use, and each image by its name."""
    wanted = config.containers.runtime
    spec = registry.lookup(wanted)
    if spec is not None and not spec.images:
        return _engine(None, reason=f"containers.runtime is {wanted}, which has no images"), {}
    names = (wanted,)
    if wanted == registry.AUTO:
        names = tuple(name for name in selection.order() if registry.BUILT_IN[name].images)
    refused: list[tuple[str, RuntimeStatus]] = []
    without: tuple[dict[str, Any], dict[str, dict[str, Any]]] | None = None
    for name in names:
        here = Path()  # nothing is made, so no folder is needed
        runtime = selection.make(name, config, here, here, here)
        try:
            status = await _status(runtime)
            if not status.ok:
                refused.append((name, status))
                continue
            found = await _look(runtime, status, images)
        finally:
            await runtime.aclose()
        if found[1].get(images[0], _UNKNOWN)["present"]:
            return found
        without = without or found
    if without is not None:
        return without
    reason = "; ".join(f"{name}: {status.reason or 'it does not work'}" for name, status in refused)
    remedy = next((status.remedy for _, status in refused if status.remedy), None)
    return _engine(wanted if wanted != registry.AUTO else None, reason=reason, remedy=remedy), {}


async def _status(runtime: ContainerRuntime) -> RuntimeStatus:
    try:
        async with asyncio.timeout(SECONDS):
            return await runtime.ping()
    except TimeoutError:
        return RuntimeStatus(
            ok=False, reason=f"no answer within {SECONDS:g} s", remedy="oubliette doctor"
        )


async def _look(
    runtime: ContainerRuntime, status: RuntimeStatus, images: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    try:
        async with asyncio.timeout(SECONDS):
            seen = await asyncio.gather(*(runtime.image(name) for name in images))
    except (OublietteError, TimeoutError) as error:
        said = error if isinstance(error, OublietteError) else None
        reason = said.message if said is not None else f"no answer within {SECONDS:g} s"
        return _engine(
            runtime.name, status.version, reason, said.hint if said is not None else None
        ), {}
    return _engine(runtime.name, status.version), {
        name: _image(each) for name, each in zip(images, seen, strict=True)
    }


def _engine(
    name: str | None,
    version: str | None = None,
    reason: str | None = None,
    remedy: str | None = None,
) -> dict[str, Any]:
    return {"name": name, "version": version, "reason": reason, "remedy": remedy}


def _image(info: ImageInfo | None) -> dict[str, Any]:
    if info is None:
        return {**_UNKNOWN, "present": False}
    return {
        "present": True,
        "id": info.id,
        "size_bytes": info.size_bytes,
        "built_at": info.built_at,
        "arrived_at": info.arrived_at,
    }
