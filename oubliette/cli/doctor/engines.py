"""Checks of each engine: availability, image, and which one is used."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.cli.doctor.checks import Check, bad, failed, ok
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from oubliette.config.schema import Config
    from oubliette.runtime.containers.runtime_spec import RuntimeSpec

SECONDS: Final = 10.0  # for one engine


def engines(config: Config) -> list[Check]:
    """Return one finding for each engine; a failure only if the configuration requires it."""
    return asyncio.run(_engines(config))


async def _engines(config: Config) -> list[Check]:
    from oubliette.runtime.containers import registry

    there = registry.installed()
    wanted = config.containers.runtime
    found = [_unusable(name, why, wanted) for name, why in there.broken.items()]
    try:
        registry.check_tables(config)
        if wanted != registry.AUTO and wanted not in there.broken:
            registry.find(wanted)
    except OublietteError as error:
        found.append(failed("container runtime", error))
    engines = (spec for spec in there.specs.values() if not spec.uses_sandbox)
    return [*await asyncio.gather(*(_engine(spec, config) for spec in engines)), *found]


def _unusable(name: str, why: str, wanted: str) -> Check:
    """The finding about a package that cannot be used."""
    remedy = "update that package, or uninstall it"
    if name == wanted:
        return bad(name, why, remedy)
    return ok(name, f"not used: {why}; to use it: {remedy}")


async def _engine(spec: RuntimeSpec, config: Config) -> Check:
    from oubliette.runtime.containers import registry
    from oubliette.runtime.containers.options import image_of
    from oubliette.runtime.containers.selection import make, pull_command

    name = spec.name
    wanted = registry.lookup(config.containers.runtime) is spec
    unsupported = spec.unsupported()
    if unsupported is not None and not wanted:
        return ok(name, f"not used: {unsupported}")
    here = Path()  # nothing is made, so no folder is needed
    try:
        runtime = make(name, config, here, here, here)
    except OublietteError as error:
        return failed(name, error) if wanted else bad(name, error.message, error.hint, "warn")
    try:
        async with asyncio.timeout(SECONDS):
            status = await runtime.ping()
            if not status.ok:
                detail = status.reason or "does not work"
                if wanted:
                    return bad(name, detail, status.remedy)
                return ok(name, f"not used: {detail}; to use it: {status.remedy or 'see above'}")
            if not spec.images:
                return ok(name, status.version or "works")
            image = image_of(config, "base")
            if await runtime.image_exists(image):
                return ok(name, f"{status.version}, has the image {image}")
            # A named one pulls it at the first start of a container; `auto`, of a server.
            return bad(
                name,
                f"{status.version}, has no image {image}",
                f"{pull_command(name, image)}, or set containers.image",
                "warn",
            )
    except TimeoutError:
        return bad(name, f"no answer within {SECONDS:g} s", f"is {name} overloaded?", "warn")
    except OublietteError as error:
        return bad(name, error.message, error.hint, "warn")
    finally:
        await runtime.aclose()
