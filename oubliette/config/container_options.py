"""What a container is made of and how it is closed: defaults, and what may differ from them.

`[containers]` has every option with its default. `[container_types.NAME]` and
`[project_containers.NAME_OR_ID]` are tables of the same options, each of them optional; a project's
goes before its type's, and that before `[containers]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_type_hints

import msgspec
from msgspec import Meta

BASE: Final = "base"
DEV: Final = "dev"
TYPE_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,31}$"
"""How a container type may be called."""

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
"""capabilities(7), without the `CAP_`."""


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every container of an engine; those that can differ by type and by project."""

    image: Annotated[str, Meta(min_length=1, max_length=500)] = (
        "docker.io/library/python:3.12-bookworm"
    )
    """Image of containers of type `base`; any with Python 3.9 or later will do. The default has
    git."""
    build_dir: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Folder with the Dockerfile that `image_rebuild` builds. Unset: Oubliette's own, for images
    whose name begins with `localhost/`."""
    build_args: tuple[Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*=")], ...] = ()
    """What the Dockerfile is given, such as `BASE_IMAGE=debian:trixie`; shown in the image."""
    network: Annotated[str, Meta(pattern="^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$")] = "bridge"
    """What containers of an engine reach: none, bridge, host, or the name of a network."""
    memory_mb: Annotated[int, Meta(ge=64, le=16_000_000)] = 6144
    """Memory of a container of an engine, all agents and files in its /tmp together; there is no
    swap beyond. The default is for ten agents of half a gigabyte."""
    cpus: Annotated[float, Meta(ge=0.01, le=10_000)] = 2.0
    """Processors of a container of an engine."""
    pids: Annotated[int, Meta(ge=8, le=1_000_000)] = 1024
    """Processes and threads of a container of an engine, all agents together."""
    tmp_mb: _Megabytes = 1024
    """Room in a container's /tmp."""
    shm_mb: _Megabytes = 256
    """Room in the /dev/shm of a container of an engine."""
    read_only: bool = True
    """Nothing of an image can be written; projects, HOME and /tmp can."""
    drop_capabilities: bool = True
    """No capability at all; otherwise those that the engine gives by default."""
    cap_add: tuple[Capability, ...] = ()
    """Capabilities that containers have all the same, such as `NET_BIND_SERVICE`."""
    no_new_privileges: bool = True
    """No program gets more rights than who starts it: no setuid, no file capabilities."""
    init: bool = True
    """Process 1 is the engine's init, which reaps what nobody waits for."""
    ipc: Literal["private", "shareable", "host"] = "private"
    """Whose shared memory and semaphores are seen; `shareable`: other containers may join."""
    nofile: Annotated[int, Meta(ge=64, le=1_000_000)] = 8192
    """Files that a process may have open, at most; it begins with 4096 or this."""
    oom_score: Annotated[int, Meta(ge=0, le=1000)] = 500
    """Who goes first when the machine is out of memory: 1000 before all others."""
    log_mb: _Megabytes = 10
    """Size at which the engine begins a new file of a container's own output."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """Files of a container's own output that are kept (docker; podman keeps one)."""
    oci_runtime: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """What runs containers: `runsc` for gVisor. Unset: the engine's section says."""
    uid: Annotated[int, Meta(ge=1, le=4_294_967_293)] | None = None
    """User id of agents of projects made from now on. Unset: each project has its own. Only a
    server that is root can choose."""


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
        """Some of the options of `ContainerOptions`; the others are UNSET."""

else:
    ContainerOverrides = _overrides()


def given(overrides: ContainerOverrides) -> dict[str, object]:
    """The options that a table has."""
    return {
        name: value
        for name in ContainerOptions.__struct_fields__
        if (value := getattr(overrides, name)) is not cast("object", msgspec.UNSET)
    }
