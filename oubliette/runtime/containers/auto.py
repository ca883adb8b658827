"""Which runtime a server uses, and why (DESIGN 7.1): docker, podman, process, in this order.

On a Mac with Apple silicon, Apple's `container` comes before them. An engine is taken when it
answers and has the image that containers are to be made of. Without the image every session would
wait for a registry, or fail for want of one, on a machine where the sandbox would have run it at
once.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final

from oubliette import ids
from oubliette.errors import ConfigError, OublietteError
from oubliette.runtime.containers import settings
from oubliette.runtime.containers.process import ProcessRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config import Config
    from oubliette.runtime.containers.port import ContainerRuntime

ENGINES: Final = ("apple", "docker", "podman")
"""The runtimes with images."""
RUNTIMES: Final = (*ENGINES, "process")


def order() -> tuple[str, ...]:
    """The runtimes that `auto` tries on this machine, one after the other."""
    apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    return RUNTIMES if apple else tuple(name for name in RUNTIMES if name != "apple")


def make(name: str, config: Config, base: Path, zipapp: Path, home: Path) -> ContainerRuntime:
    """The runtime of that name, not tried yet.

    Raises:
        ConfigError: there is none.
    """
    if name == "process":
        return ProcessRuntime(base, zipapp, sandbox=config.process.sandbox, home=home)
    if name not in ENGINES:
        raise ConfigError(
            f"containers.runtime: there is no runtime {ids.shown(name)} in this release",
            hint=f"auto, {', '.join(sorted(RUNTIMES))}",
        )
    if name == "apple":
        from oubliette.runtime.containers.apple import AppleRuntime

        return AppleRuntime(
            base, zipapp, path=config.apple.path, hard=settings.hardening_of(config, name)
        )
    from oubliette.runtime.containers.docker import DockerRuntime

    engine = config.docker if name == "docker" else config.podman
    return DockerRuntime(
        base,
        zipapp,
        flavour=name,
        host=engine.host,
        hard=settings.hardening_of(config, name),
        sockets=engine.sockets,
    )


async def choose(
    config: Config, base: Path, zipapp: Path, home: Path
) -> tuple[ContainerRuntime, str]:
    """The runtime to use, tried, and why it is this one.

    Raises:
        ConfigError: the configured one, or none at all, can be used; says what to do.
    """
    wanted = config.containers.runtime
    if wanted != "auto":
        runtime = make(wanted, config, base, zipapp, home)
        refusal = await _refusal(runtime)
        if refusal is not None:
            await runtime.aclose()
            raise ConfigError(f"the {wanted} runtime cannot be used: {refusal[0]}", hint=refusal[1])
        return runtime, f"containers.runtime = {wanted}"
    passed_over: list[str] = []
    hint: str | None = None
    for name in order():
        runtime = make(name, config, base, zipapp, home)
        refusal = await _refusal(runtime) or await _lacks_image(runtime, config)
        if refusal is None:
            return runtime, "; ".join([f"{name} works", *passed_over])
        await runtime.aclose()
        passed_over.append(f"not {name}: {refusal[0]}")
        hint = refusal[1]
    # The last one tried is the process runtime: what it takes is the least.
    raise ConfigError(f"no container runtime can be used; {'; '.join(passed_over)}", hint=hint)


async def _refusal(runtime: ContainerRuntime) -> tuple[str, str | None] | None:
    status = await runtime.ping()
    return None if status.ok else (status.reason or "it does not work", status.remedy)


async def _lacks_image(runtime: ContainerRuntime, config: Config) -> tuple[str, str | None] | None:
    if not runtime.capabilities.images:
        return None
    image = settings.image_of(config, "base")
    try:
        if await runtime.image_exists(image):
            return None
    except OublietteError as error:
        return error.message, error.hint
    return f"it has no image {image}", pull_command(runtime.name, image)


def pull_command(engine: str, image: str) -> str:
    """What its user types to fetch an image."""
    return f"{'container image' if engine == 'apple' else engine} pull {image}"
