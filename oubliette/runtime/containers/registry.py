"""Registry of container runtimes: ours, those of installed packages, those of a program.

A package adds a runtime by an entry point of the group `oubliette.containers` that is a
`RuntimeSpec`. A program that embeds the server passes one, which is known while that server runs.
"""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette.errors import ConfigError, OublietteError, did_you_mean
from oubliette.ids import shown
from oubliette.runtime.containers.base import ContainerRuntime
from oubliette.runtime.containers.runtime_spec import ENGINE_STRENGTH, RuntimeSpec
from oubliette.runtime.extensions import (
    REMEDY,
    check_table,
    described,
    extensions,
    lacking,
    refused_settings,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from oubliette.config.schema import Config
    from oubliette.runtime.containers.docker.address import Flavour
    from oubliette.runtime.containers.runtime_spec import RuntimeSetup

log = structlog.get_logger("oubliette.containers")

GROUP: Final = "oubliette.containers"
AUTO: Final = "auto"
"""Value of `containers.runtime` that selects one of `BUILT_IN`."""


def _apple(setup: RuntimeSetup) -> ContainerRuntime:
    from oubliette.runtime.containers.apple.runtime import AppleRuntime

    return AppleRuntime(
        setup.base, setup.zipapp, path=setup.config.apple.path, hard=setup.hardening
    )


def _docker(setup: RuntimeSetup) -> ContainerRuntime:
    return _by_docker_sdk(setup, "docker")


def _podman(setup: RuntimeSetup) -> ContainerRuntime:
    return _by_docker_sdk(setup, "podman")


def _by_docker_sdk(setup: RuntimeSetup, flavour: Flavour) -> ContainerRuntime:
    from oubliette.runtime.containers.docker.runtime import DockerRuntime

    engine = setup.config.docker if flavour == "docker" else setup.config.podman
    return DockerRuntime(
        setup.base,
        setup.zipapp,
        flavour=flavour,
        host=engine.host,
        hard=setup.hardening,
        sockets=engine.sockets,
    )


def _process(setup: RuntimeSetup) -> ContainerRuntime:
    from oubliette.runtime.containers.process.runtime import ProcessRuntime

    part = setup.config.process
    return ProcessRuntime(
        setup.base, setup.zipapp, sandbox=part.sandbox, network=part.network, home=setup.home
    )


def _no_apple() -> str | None:
    here = (platform.system(), platform.machine())
    return None if here == ("Darwin", "arm64") else "only for macOS on Apple silicon"


_SPECS: Final = (
    RuntimeSpec(name="apple", make=_apple, unsupported=_no_apple, pull="container image pull"),
    RuntimeSpec(name="docker", make=_docker, oci_runtime=lambda config: config.docker.oci_runtime),
    RuntimeSpec(name="podman", make=_podman, oci_runtime=lambda config: config.podman.oci_runtime),
    RuntimeSpec(
        name="process",
        make=_process,
        images=False,
        limits=False,
        uses_sandbox=True,
        network=lambda config: config.process.network,
        isolation=lambda config: config.process.sandbox,
        strengths={"best-effort": 1, "bubblewrap": 2},
    ),
)
BUILT_IN: Final[Mapping[str, RuntimeSpec]] = {spec.name: spec for spec in _SPECS}
"""Name → spec of the runtimes that ship with Oubliette, in the order in which `auto` tries them."""


_passed: Final[list[RuntimeSpec]] = []
"""Those of programs whose servers run in this process, the newest last."""


class InstalledRuntimes(msgspec.Struct, frozen=True):
    """Container runtimes of a server."""

    specs: Mapping[str, RuntimeSpec]
    """Name → spec, `BUILT_IN` first."""
    packages: Mapping[str, str]
    """Name → package and version, of those that packages add."""
    broken: Mapping[str, str]
    """Name of the entry point → why the package's runtime cannot be used."""


@functools.cache
def installed() -> InstalledRuntimes:
    """Return every runtime; packages are loaded once a process."""
    specs = dict(BUILT_IN)
    packages: dict[str, str] = {}
    broken: dict[str, str] = {}
    for extension in extensions(GROUP):
        name, package = extension.name, extension.package
        try:
            spec = _checked(extension.load(), _taken(specs))
        except Exception as error:
            reason = described(error)
            log.warning("runtime not loaded", runtime=name, package=package, reason=reason)
            broken[name] = extension.unusable(error)
        else:
            specs[spec.name] = spec
            packages[spec.name] = package
    return InstalledRuntimes(specs, packages, broken)


def find(name: str) -> RuntimeSpec:
    """The runtime that `containers.runtime = name` selects.

    Raises:
        ConfigError: there is none of that name, or its package cannot be used.
    """
    found = lookup(name)
    if found is not None:
        return found
    there = installed()
    if name in there.broken:
        raise ConfigError(
            f"containers.runtime: {there.broken[name]}",
            hint=REMEDY,
        )
    raise ConfigError(
        f"containers.runtime: there is no runtime {shown(name)} in this release, nor in an"
        " installed package",
        hint=f"{did_you_mean(name, there.specs)}there are:"
        f" {AUTO}, {', '.join(sorted(there.specs))}",
    )


def lookup(name: str) -> RuntimeSpec | None:
    """Return the runtime that `containers.runtime = name` selects; None: `auto`, or unknown."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name == AUTO:
        return None
    for spec in reversed(_passed):
        if name in {spec.name, *spec.aliases}:
            return spec
    specs = installed().specs
    return specs.get(name) or next((one for one in specs.values() if name in one.aliases), None)


def known() -> tuple[RuntimeSpec, ...]:
    return (*installed().specs.values(), *_passed)


@contextlib.contextmanager
def passed(runtime: ContainerRuntime | RuntimeSpec | None) -> Generator[RuntimeSpec | None]:
    """Add the runtime of a program for the time of the `with` block, and return its spec.

    Raises:
        ConfigError: it is no runtime, or its name is taken.
    """
    if runtime is None:
        yield None
        return
    try:
        spec = runtime if isinstance(runtime, RuntimeSpec) else _spec_of(runtime)
        spec = _checked(spec, _taken(installed().specs))
    except ConfigError as error:
        raise ConfigError(
            f"runtime: {error.message}",
            hint=error.hint or "pass a ContainerRuntime, or a RuntimeSpec",
        ) from error
    _passed.append(spec)
    try:
        yield spec
    finally:
        _passed.remove(spec)


def _spec_of(runtime: ContainerRuntime) -> RuntimeSpec:
    """The spec of a runtime that is there already.

    One without images is taken for a sandbox: its network is `process.network`, with `auto` the
    host's, and it limits no memory. A program whose runtime differs passes a `RuntimeSpec`.

    Raises:
        ConfigError: it lacks something.
    """
    if isinstance(runtime, str):  # what the option of this name is on the command line
        raise ConfigError(
            f"{shown(runtime)} is a name, and this is for a runtime of your own",
            hint=f'choose one by its name with config={{"containers.runtime": {shown(runtime)}}}',
        )
    without = lacking(runtime, ContainerRuntime)
    if without:
        raise ConfigError(f"{shown(type(runtime).__name__)} has no {without}")
    has = runtime.capabilities
    strength = 1 if has.isolation == "none" else ENGINE_STRENGTH
    return RuntimeSpec(
        name=runtime.name,
        make=lambda _: runtime,
        images=has.images,
        limits=has.images,
        network=None if has.images else _plain_network,
        strengths={runtime.name: strength},
    )


def _plain_network(config: Config) -> str:
    return "host" if config.process.network == "auto" else config.process.network


def check_tables(config: Config) -> None:
    """Check that each table `[package_runtimes.NAME]` is that of a package's runtime.

    Raises:
        ConfigError: no package has a runtime of that name.
    """
    for name in config.package_runtimes:
        there = installed()
        own = {spec.name for spec in _passed}
        known = there.packages.keys() | there.broken.keys() | own
        check_table("package_runtimes", name, "a runtime", known)


def make(spec: RuntimeSpec, setup: RuntimeSetup) -> ContainerRuntime:
    """The runtime, not tried yet.

    Raises:
        ConfigError: its configuration is invalid, or what a package made is no such runtime.
    """
    if spec.name in BUILT_IN:
        return spec.make(setup)
    try:
        runtime = spec.make(setup)
        _check_made(runtime, spec)
    except OublietteError:
        raise
    except msgspec.ValidationError as error:
        raise refused_settings(f"package_runtimes.{spec.name}", error) from error
    except Exception as error:
        package = installed().packages.get(spec.name)
        whose = "the program" if package is None else f"the package {package}"
        raise ConfigError(
            f"containers.runtime: {whose} cannot make its runtime {spec.name}: {described(error)}",
            hint=None if package is None else REMEDY,
        ) from error
    return runtime


def _check_made(runtime: ContainerRuntime, spec: RuntimeSpec) -> None:
    """Check that it has all required attributes and the name of its spec.

    Raises:
        TypeError: it has not.
    """
    without = lacking(runtime, ContainerRuntime)
    if without:
        raise TypeError(f"it has no {without}")
    if runtime.name != spec.name:
        raise TypeError(f"its name is {shown(runtime.name)}")


def _taken(specs: Mapping[str, RuntimeSpec]) -> set[str]:
    """Return all names and aliases; those of isolations too, which a home remembers."""
    return {AUTO} | {
        name for spec in specs.values() for name in (spec.name, *spec.aliases, *spec.walls)
    }


def _checked(spec: object, taken: set[str]) -> RuntimeSpec:
    """The spec of a package whose names are valid and free.

    Raises:
        ConfigError: it is none, or a name is taken or invalid.
    """
    if not isinstance(spec, RuntimeSpec):
        raise ConfigError(f"it is no RuntimeSpec but {shown(type(spec).__name__)}")
    names = (spec.name, *spec.aliases)
    for name in names:
        if not name.isascii() or not name.isprintable() or not name.strip():
            raise ConfigError(f"its name is {name!r}")
    for name in (*names, *spec.walls):
        if name in taken:
            raise ConfigError(
                f"there is a runtime called {name} already", hint="give it another name"
            )
    if spec.isolation is not None and not spec.strengths:
        raise ConfigError("isolation names no key of strengths, which is empty")
    return spec
