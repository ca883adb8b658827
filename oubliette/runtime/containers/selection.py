"""Selection of a server's runtime: docker, podman, process, in this order.

On a Mac with Apple silicon, Apple's `container` comes before them. An engine is chosen if it
answers and has the image of the containers. If engines answer and none has it, the first one pulls
it; if that fails the start is refused. The sandbox is for machines without an engine: agents never
get a weaker isolation for want of an image.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final

import structlog

from oubliette import ids
from oubliette.errors import ConfigError, OublietteError
from oubliette.runtime.containers import image_errors, options
from oubliette.runtime.containers.images import Imaging, built_from
from oubliette.runtime.containers.process.runtime import ProcessRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import Config
    from oubliette.runtime.containers.base import ContainerRuntime

log = structlog.get_logger("oubliette.server")

ENGINES: Final = ("apple", "docker", "podman")
"""The runtimes with images."""
RUNTIMES: Final = (*ENGINES, "process")


def order() -> tuple[str, ...]:
    """Return the runtimes that `auto` tries on this machine, in order."""
    apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    return RUNTIMES if apple else tuple(name for name in RUNTIMES if name != "apple")


def make(name: str, config: Config, base: Path, zipapp: Path, home: Path) -> ContainerRuntime:
    """Return the runtime of that name, not tried yet.

    Raises:
        ConfigError: the name is unknown.
    """
    if name == "process":
        return ProcessRuntime(base, zipapp, sandbox=config.process.sandbox, home=home)
    if name not in ENGINES:
        raise ConfigError(
            f"containers.runtime: there is no runtime {ids.shown(name)} in this release",
            hint=f"auto, {', '.join(sorted(RUNTIMES))}",
        )
    if name == "apple":
        from oubliette.runtime.containers.apple.runtime import AppleRuntime

        return AppleRuntime(
            base, zipapp, path=config.apple.path, hard=options.hardening_of(config, name)
        )
    from oubliette.runtime.containers.docker.runtime import DockerRuntime

    engine = config.docker if name == "docker" else config.podman
    return DockerRuntime(
        base,
        zipapp,
        flavour=name,
        host=engine.host,
        hard=options.hardening_of(config, name),
        sockets=engine.sockets,
    )


async def choose(
    config: Config, base: Path, zipapp: Path, home: Path
) -> tuple[ContainerRuntime, str]:
    """Return the runtime to use, tried, and the reason for it.

    Raises:
        ConfigError: the configured runtime, or every one, is unusable, or an engine has no image
            and cannot pull it; the message has the remedy.
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
    bare: str | None = None  # the first engine that lacks only the image
    for name in order():
        if name == "process" and bare is not None:
            runtime = make(bare, config, base, zipapp, home)
            await _fetch(runtime, config)
            return runtime, f"{bare} works, and its image was fetched"
        runtime = make(name, config, base, zipapp, home)
        refusal = await _refusal(runtime)
        if refusal is None:
            refusal = await _lacks_image(runtime, config)
            if refusal is None:
                return runtime, "; ".join([f"{name} works", *passed_over])
            bare = bare or name
        await runtime.aclose()
        passed_over.append(f"not {name}: {refusal[0]}")
        hint = refusal[1]
    # The last one tried is the process runtime: it needs the least.
    raise ConfigError(f"no container runtime can be used; {'; '.join(passed_over)}", hint=hint)


async def _fetch(runtime: ContainerRuntime, config: Config) -> None:
    """Build or pull the image of containers, and log the progress.

    Raises:
        ConfigError: the image is unavailable; the message has the reason and alternatives.
    """
    image = options.image_of(config, "base")
    built = built_from(options.options_of(config, "base")) is not None
    log.info("fetching the image", runtime=runtime.name, image=image, built=built)
    imaging = Imaging(runtime, config)
    try:
        await (imaging.rebuild if built else imaging.refresh)("base", progress=_tell)
    except BaseException as error:
        await runtime.aclose()
        if not isinstance(error, OublietteError):
            raise
        remedy = "" if error.hint is None else f"{error.hint}; "
        raise ConfigError(
            f"{runtime.name} works, but has no image {image}, and it cannot be"
            f" {'built' if built else 'fetched'}: {error.message}",
            hint=f"{remedy}{pull_command(runtime.name, image)}, or containers.image; or"
            " --runtime process (containers.runtime) for the sandbox, which needs none",
        ) from error


def _tell(line: str) -> None:
    log.info("fetching the image", progress=line)


async def _refusal(runtime: ContainerRuntime) -> tuple[str, str | None] | None:
    status = await runtime.ping()
    return None if status.ok else (status.reason or "it does not work", status.remedy)


async def _lacks_image(runtime: ContainerRuntime, config: Config) -> tuple[str, str | None] | None:
    if not runtime.capabilities.images:
        return None
    image = options.image_of(config, "base")
    try:
        if await runtime.image_exists(image):
            return None
    except OublietteError as error:
        return error.message, error.hint
    return f"it has no image {image}", pull_command(runtime.name, image)


def pull_command(engine: str, image: str) -> str:
    """Return the command that pulls an image, or builds one that no registry has."""
    if image.startswith(image_errors.BUILT):
        return image_errors.REBUILD
    return f"{'container image' if engine == 'apple' else engine} pull {image}"
