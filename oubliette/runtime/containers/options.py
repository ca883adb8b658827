"""What the configuration means for containers of each runtime, type and project.

`[containers]` has the defaults. What a container type's table has goes before them, and what a
project's has, by its name or by its id, before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.config.container_options import BASE, DEV, ContainerOptions, given
from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers.base import MIB, ContainerLimits, Hardening

if TYPE_CHECKING:
    from oubliette.config.schema import Config
    from oubliette.records import Project

NOFILE_SOFT: Final = 4096  # what a process begins with


def types_of(config: Config, *, images: bool) -> tuple[str, ...]:
    """The container types that a project can have; those with a table only, without images."""
    built_in = (BASE, DEV) if images else (BASE,)
    return tuple(dict.fromkeys((*built_in, *config.container_types)))


def check_type(config: Config, container_type: str) -> None:
    """Refuse a type that was configured when its project was made, and is not any more.

    Raises:
        RuntimeFailure: it would get what is not meant for it.
    """
    if container_type not in types_of(config, images=True):
        raise RuntimeFailure(
            f"the container type {container_type} of this project is not configured",
            hint=f"add a table [container_types.{container_type}] to oubliette.toml",
        )


def options_of(
    config: Config, container_type: str = BASE, project: Project | None = None
) -> ContainerOptions:
    """All options of a container."""
    names = () if project is None else (project.name, project.id)
    return _options(config, container_type, names)


def uid_of(config: Config, container_type: str | None, name: str) -> int | None:
    """The user id for a project of that name which is being made; None = one of its own."""
    return _options(config, container_type or BASE, (name,)).uid


def _options(config: Config, container_type: str, names: tuple[str, ...]) -> ContainerOptions:
    part = config.containers
    found: dict[str, Any] = {
        name: getattr(part, name) for name in ContainerOptions.__struct_fields__
    }
    if container_type == DEV:
        found["image"] = part.dev_image
    if container_type in config.container_types:
        found |= given(config.container_types[container_type])
    for name in names:
        if name in config.project_containers:
            found |= given(config.project_containers[name])
    return ContainerOptions(**found)


def accepts_bare(config: Config, project: Project) -> bool:
    """Whether clients without a secret are let in, in containers of that project."""
    return config.relay.accept_bare if project.accept_bare is None else project.accept_bare


def image_of(config: Config, container_type: str, project: Project | None = None) -> str:
    """The image of a container type, or of a project of that type."""
    return options_of(config, container_type, project).image


def network_of(
    config: Config, runtime: str, container_type: str = BASE, project: Project | None = None
) -> str:
    """What containers of that runtime reach."""
    if runtime == "process":
        return config.process.network
    return options_of(config, container_type, project).network


def limits_of(
    config: Config, runtime: str, container_type: str = BASE, project: Project | None = None
) -> ContainerLimits:
    """Limits of a whole container; the process runtime knows the size of /tmp alone."""
    part = options_of(config, container_type, project)
    if runtime == "process":
        return ContainerLimits(tmp_bytes=part.tmp_mb * MIB)
    return ContainerLimits(
        memory_bytes=part.memory_mb * MIB,
        cpus=part.cpus,
        pids=part.pids,
        tmp_bytes=part.tmp_mb * MIB,
    )


def hardening_of(
    config: Config, runtime: str, container_type: str = BASE, project: Project | None = None
) -> Hardening:
    """How containers of an engine are closed."""
    part = options_of(config, container_type, project)
    own = {"docker": config.docker.oci_runtime, "podman": config.podman.oci_runtime}
    return Hardening(
        memory_bytes=part.memory_mb * MIB,
        cpus=part.cpus,
        pids=part.pids,
        read_only=part.read_only,
        drop_capabilities=part.drop_capabilities,
        cap_add=part.cap_add,
        no_new_privileges=part.no_new_privileges,
        init=part.init,
        ipc=part.ipc,
        nofile=(min(NOFILE_SOFT, part.nofile), part.nofile),
        shm_bytes=part.shm_mb * MIB,
        oom_score=part.oom_score,
        log_bytes=part.log_mb * MIB,
        log_files=part.log_files,
        oci_runtime=part.oci_runtime or own.get(runtime),
    )
