"""Options of containers: image, network, limits and isolation, with defaults and overrides.

`[containers]` has every option with its default. `[container_types.NAME]` and
`[project_containers.NAME_OR_ID]` are tables of the same options, each of them optional. A project's
table has precedence over its type's, and that over `[containers]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_type_hints

import msgspec
from msgspec import Meta

BASE: Final = "base"
DEV: Final = "dev"
TYPE_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,31}$"
"""Pattern of a container type's name."""

_Megabytes = Annotated[int, Meta(ge=1, le=16_000_000)]

Capability: TypeAlias = Literal[
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE",
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL",
    "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP",
    "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE",
    "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG",
    "WAKE_ALARM",
]  # fmt: skip
"""Capabilities of capabilities(7), without the prefix `CAP_`."""


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of an engine's containers that can differ by type and by project."""

    image: Annotated[str, Meta(min_length=1, max_length=500)] = (
        "docker.io/library/python:3.12-bookworm"
    )
    """Image of containers of type `base`; any image with Python 3.9 or later works. The default has
    git."""
    build_dir: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Folder with the Dockerfile that `image_rebuild` builds. Unset: Oubliette's own, for images
    whose name begins with `localhost/`."""
    build_args: tuple[Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*=")], ...] = ()
    """Build arguments for the Dockerfile, such as `BASE_IMAGE=debian:trixie`; visible in the
    image."""
    network: Annotated[str, Meta(pattern="^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$")] = "bridge"
    """Network of an engine's containers: none, bridge, host, or the name of a network."""
    memory_mb: Annotated[int, Meta(ge=64, le=16_000_000)] = 6144
    """Memory of an engine's container, for all agents and the files in its /tmp together, in MB;
    there is no swap in addition. The default is for ten agents of half a gigabyte."""
    cpus: Annotated[float, Meta(ge=0.01, le=10_000)] = 2.0
    """Number of processors that an engine's container can use."""
    pids: Annotated[int, Meta(ge=8, le=1_000_000)] = 1024
    """Maximum of processes and threads in an engine's container, of all agents together."""
    tmp_mb: _Megabytes = 1024
    """Size of a container's /tmp, in MB."""
    shm_mb: _Megabytes = 256
    """Size of /dev/shm in an engine's container, in MB."""
    read_only: bool = True
    """Mount the image read-only; projects, HOME and /tmp stay writable."""
    drop_capabilities: bool = True
    """Drop all capabilities; otherwise containers have those that the engine gives by default."""
    cap_add: tuple[Capability, ...] = ()
    """Capabilities that containers have in spite of `drop_capabilities`, such as
    `NET_BIND_SERVICE`."""
    no_new_privileges: bool = True
    """No program gains rights when it is executed: setuid and file capabilities have no effect."""
    init: bool = True
    """Run the engine's init as process 1, which reaps orphaned processes."""
    ipc: Literal["private", "shareable", "host"] = "private"
    """Namespace of shared memory and semaphores; `shareable`: other containers may join it."""
    nofile: Annotated[int, Meta(ge=64, le=1_000_000)] = 8192
    """Maximum of open files of a process; processes begin with the lower of 4096 and this."""
    oom_score: Annotated[int, Meta(ge=0, le=1000)] = 500
    """Adjustment of the kernel's out-of-memory score; 1000: killed before all other processes."""
    log_mb: _Megabytes = 10
    """Size in MB at which the engine begins a new file for a container's own output."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """Number of files of a container's own output that are kept (docker; podman keeps one)."""
    oci_runtime: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """OCI runtime that runs the containers, such as `runsc` for gVisor. Unset: that of the engine's
    section."""
    uid: Annotated[int, Meta(ge=1, le=4_294_967_293)] | None = None
    """User id of the agents in projects created from now on. Unset: each project has its own.
    Requires a server that runs as root."""


def _overrides() -> Any:
    hints = get_type_hints(ContainerOptions, include_extras=True)
    return msgspec.defstruct(
        "ContainerOverrides",
        [
            (name, hints[name] | msgspec.UnsetType, msgspec.UNSET)
            for name in ContainerOptions.__struct_fields__
        ],
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
    )


if TYPE_CHECKING:

    class ContainerOverrides(ContainerOptions, frozen=True, kw_only=True):
        """Overrides of `ContainerOptions`; options that are not overridden are UNSET."""

else:
    ContainerOverrides = _overrides()


def given(overrides: ContainerOverrides) -> dict[str, object]:
    """The options that a table sets."""
    return {
        name: value
        for name in ContainerOptions.__struct_fields__
        if (value := getattr(overrides, name)) is not cast("object", msgspec.UNSET)
    }
