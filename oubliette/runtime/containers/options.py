"""Options of containers by runtime, type and project, from the configuration.

`[containers]` has the defaults. A container type's table takes precedence over them, and a
project's table, by its name or by its id, over that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.config.container_options import BASE, DEV, ContainerOptions, given
from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers import registry
from oubliette.runtime.containers.base import MIB, ContainerLimits, Hardening

if TYPE_CHECKING:
    from oubliette.config.schema import Config
    from oubliette.records import Project

NOFILE_SOFT: Final = 4096  # soft limit at the start of a process


def types_of(config: Config, *, images: bool) -> tuple[str, ...]:
    """Return the container types that a project can have; without images, those with a table."""
    built_in = (BASE, DEV) if images else (BASE,)
    return tuple(dict.fromkeys((*built_in, *config.container_types)))


def check_type(config: Config, container_type: str) -> None:
    """Refuse a type that was configured when its project was made, and is not any more.

    Raises:
        RuntimeFailure: the type has no table.
    """
    if container_type not in types_of(config, images=True):
        raise RuntimeFailure(
            f"the container type {container_type} of this project is not configured",
            hint=f"add a table [container_types.{container_type}] to oubliette.toml",
        )


def options_of(
    config: Config, container_type: str = BASE, project: Project | None = None
) -> ContainerOptions:
    names = () if project is None else (project.name, project.id)
    found = _options(config, container_type, names)
    if project is not None and project.image is not None:
        found = msgspec.structs.replace(found, image=project.image)
    return found


def options_of_new(config: Config, container_type: str | None, name: str) -> ContainerOptions:
    """All options of the containers of a project that is to be created."""
    return _options(config, container_type or BASE, (name,))


def uid_of(config: Config, container_type: str | None, name: str) -> int | None:
    """Return the user id for a new project of that name; None = one of its own."""
    return options_of_new(config, container_type, name).uid


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
    """Whether containers of that project accept clients without a secret."""
    return config.relay.accept_bare if project.accept_bare is None else project.accept_bare


def image_of(config: Config, container_type: str, project: Project | None = None) -> str:
    return options_of(config, container_type, project).image


def network_of(
    config: Config, runtime: str, container_type: str = BASE, project: Project | None = None
) -> str:
    of_all = registry.find(runtime).network
    if of_all is not None:
        return of_all(config)
    return options_of(config, container_type, project).network


def limits_of(
    config: Config, runtime: str, container_type: str = BASE, project: Project | None = None
) -> ContainerLimits:
    """Return limits of a whole container; some runtimes only limit the size of /tmp."""
    part = options_of(config, container_type, project)
    if not registry.find(runtime).limits:
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
    part = options_of(config, container_type, project)
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
        oci_runtime=part.oci_runtime or registry.find(runtime).oci_runtime(config),
    )
