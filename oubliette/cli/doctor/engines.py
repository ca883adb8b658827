"""Checks of each engine: availability, image, and which one is used."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.cli.doctor.checks import Check, bad, ok
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from oubliette.config.schema import Config

SECONDS: Final = 10.0  # for one engine


def engines(config: Config) -> list[Check]:
    """Return one finding for each engine; a failure only if the configuration requires it."""
    return asyncio.run(_engines(config))


async def _engines(config: Config) -> list[Check]:
    from oubliette.runtime.containers.selection import ENGINES

    return list(await asyncio.gather(*(_engine(name, config) for name in ENGINES)))


async def _engine(name: str, config: Config) -> Check:
    from oubliette.runtime.containers.options import image_of
    from oubliette.runtime.containers.selection import make, order, pull_command

    wanted = config.containers.runtime == name
    if name not in order() and not wanted:
        return ok(name, "not used: only for macOS on Apple silicon")
    here = Path()  # nothing is made, so no folder is needed
    runtime = make(name, config, here, here, here)
    try:
        async with asyncio.timeout(SECONDS):
            status = await runtime.ping()
            if not status.ok:
                detail = status.reason or "does not work"
                if wanted:
                    return bad(name, detail, status.remedy)
                return ok(name, f"not used: {detail}; to use it: {status.remedy or 'see above'}")
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
