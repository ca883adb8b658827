"""Selection of a server's runtime: as configured; `auto`: docker, podman, process, in this order.

On a Mac with Apple silicon, Apple's `container` comes before them. An engine is chosen if it
answers and has the image of the containers. If engines answer and none has it, the first one pulls
it; if that fails the start is refused. The sandbox is for machines without an engine: agents never
get a weaker isolation for want of an image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from oubliette.errors import ConfigError, OublietteError
from oubliette.runtime.containers import engine_errors, options, registry
from oubliette.runtime.containers.images import Imaging, built_from
from oubliette.runtime.containers.runtime_spec import RuntimeSetup

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import Config
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.containers.runtime_spec import RuntimeSpec

log = structlog.get_logger("oubliette.server")


def order() -> tuple[str, ...]:
    """Return the runtimes that `auto` tries on this machine, in order; no package's."""
    return tuple(name for name, spec in registry.BUILT_IN.items() if spec.unsupported() is None)


def make(name: str, config: Config, base: Path, zipapp: Path, home: Path) -> ContainerRuntime:
    """The runtime that `containers.runtime = name` selects, not tried yet.

    Raises:
        ConfigError: there is none of that name, or its package cannot be used.
    """
    spec = registry.find(name)
    setup = RuntimeSetup(
        config=config,
        base=base,
        zipapp=zipapp,
        home=home,
        hardening=options.hardening_of(config, spec.name),
        settings=dict(config.package_runtimes.get(spec.name, {})),
    )
    return registry.make(spec, setup)


async def choose(
    config: Config, base: Path, zipapp: Path, home: Path, passed: RuntimeSpec | None = None
) -> tuple[ContainerRuntime, str]:
    """Return the runtime to use, tried, and the reason for it.

    `passed` is that of the program that runs the server; the configuration may not name another.

    Raises:
        ConfigError: the configured runtime, or every one, is unusable, or an engine has no image
            and cannot pull it; the message has the remedy.
    """
    registry.check_tables(config)
    wanted = config.containers.runtime
    if passed is not None:
        if wanted not in {registry.AUTO, passed.name, *passed.aliases}:
            raise ConfigError(
                f"containers.runtime is {wanted}, and the program passes the runtime {passed.name}",
                hint="pass none, or leave containers.runtime out",
            )
        wanted = passed.name
    if wanted != registry.AUTO:
        runtime = make(wanted, config, base, zipapp, home)
        refusal = await _refusal(runtime)
        if refusal is not None:
            await runtime.aclose()
            raise ConfigError(f"the {wanted} runtime cannot be used: {refusal[0]}", hint=refusal[1])
        return runtime, (
            f"containers.runtime = {wanted}" if passed is None else "the program passes it"
        )
    passed_over: list[str] = []
    hint: str | None = None
    bare: str | None = None  # the first engine that lacks only the image
    for name in order():
        if bare is not None and not registry.BUILT_IN[name].images:
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
            hint=f"{remedy}{pull_command(runtime.name, image)}, or containers.image; or, for the"
            " sandbox, which needs no image, --runtime process (oubliette config set"
            " containers.runtime process)",
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
    if image.startswith(engine_errors.BUILT):
        return engine_errors.REBUILD
    return f"{registry.find(engine).pull_prefix} {image}"
