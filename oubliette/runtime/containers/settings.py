"""What the configuration means for containers of each runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers.hardening import MIB, Hardening
from oubliette.runtime.containers.port import ContainerLimits

if TYPE_CHECKING:
    from oubliette.config import Config
    from oubliette.runtime.containers.engine import Flavour

DEV: Final = "dev"


def image_of(config: Config, container_type: str) -> str:
    """The image of a container type."""
    return config.containers.dev_image if container_type == DEV else config.containers.image


def network_of(config: Config, runtime: str) -> str:
    """What containers of that runtime reach."""
    return config.process.network if runtime == "process" else config.containers.network


def limits_of(config: Config, runtime: str) -> ContainerLimits:
    """Limits of a whole container; the process runtime knows the size of /tmp alone."""
    if runtime == "process":
        return ContainerLimits(tmp_bytes=config.containers.tmp_mb * MIB)
    part = config.containers
    return ContainerLimits(
        memory_bytes=part.memory_mb * MIB,
        cpus=part.cpus,
        pids=part.pids,
        tmp_bytes=part.tmp_mb * MIB,
    )


def hardening_of(config: Config, flavour: Flavour) -> Hardening:
    """How containers of an engine are closed."""
    engine = config.docker if flavour == "docker" else config.podman
    return Hardening(read_only=config.containers.read_only, oci_runtime=engine.oci_runtime)


def all_of(config: Config) -> tuple[object, ...]:
    """Everything that an engine's container is made of, for its spec hash."""
    part = config.containers
    return (
        part.network,
        limits_of(config, "docker"),
        part.read_only,
        config.docker,
        config.podman,
    )
