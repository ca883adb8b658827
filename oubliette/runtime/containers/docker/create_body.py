"""Body of the request that creates a container: everything closed that need not be open.

Each option is on by default, and each of them is a setting.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.runtime.containers import layout
from oubliette.runtime.containers.base import (
    MIB,
    RELAY_DIR,
    Hardening,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.containers.base import ContainerSpec
    from oubliette.runtime.containers.docker.client import Flavour

STOP_SIGNAL: Final = "SIGTERM"
PODMAN_PROCESSES: Final = 16_384


class HostPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Folders and files of this machine that are mounted into the container."""

    zipapp: Path
    wrappers: Path
    spool: Path


def request(
    spec: ContainerSpec,
    place: HostPaths,
    hard: Hardening,
    *,
    user: str,
    labels: Mapping[str, str],
    flavour: Flavour,
) -> dict[str, Any]:
    """The body of the engine's create call (Docker API 1.41).

    `hard` is for specs without their own hardening.
    """
    hard = spec.hardening or hard
    command = layout.guest_command(spec, hard)
    # podman without systemd complains of a health check, even of none
    healthcheck = {"Healthcheck": {"Test": ["NONE"]}} if flavour == "docker" else {}
    return {
        **healthcheck,
        "Image": spec.image,
        # Entrypoint is set, so the image's own is not run; its Cmd is dropped with it.
        "Entrypoint": command[:1],
        "Cmd": command[1:],
        "User": user,
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in sorted(layout.environment(spec).items())],
        "Labels": dict(labels),
        "StopSignal": STOP_SIGNAL,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        "Hostname": "" if spec.network == "host" else "oubliette",
        "HostConfig": _host_config(spec, place, hard, flavour),
    }


def _host_config(
    spec: ContainerSpec, place: HostPaths, hard: Hardening, flavour: Flavour
) -> dict[str, Any]:
    limits = spec.limits
    memory = limits.memory_bytes or hard.memory_bytes
    cpus = limits.cpus or hard.cpus
    pids = limits.pids or hard.pids
    config: dict[str, Any] = {
        "NetworkMode": spec.network,
        "Mounts": _mounts(spec, place),
        "Tmpfs": _tmpfs(spec, hard),
        "ReadonlyRootfs": hard.read_only,
        "CapDrop": ["ALL"] if hard.drop_capabilities else [],
        "CapAdd": list(hard.cap_add),
        # podman only accepts the option without a value
        "SecurityOpt": ["no-new-privileges" + (":true" if flavour == "docker" else "")]
        if hard.no_new_privileges
        else [],
        "Init": hard.init,
        "IpcMode": hard.ipc,
        "RestartPolicy": {"Name": "no"},  # one restarted by the engine would have no key
        "LogConfig": _log_config(hard, flavour),
        "Ulimits": _ulimits(hard, flavour),
        "Privileged": False,
    }
    if hard.ipc != "host":
        config["ShmSize"] = hard.shm_bytes  # podman refuses a size for the machine's own
    if memory is not None:
        config |= {"Memory": memory, "MemorySwap": memory}
    if cpus is not None:
        config["NanoCpus"] = int(cpus * 1e9)
    if pids is not None:
        config["PidsLimit"] = pids
    if hard.oom_score is not None:
        config["OomScoreAdj"] = hard.oom_score
    if hard.oci_runtime is not None:
        config["Runtime"] = hard.oci_runtime
    return config


def _ulimits(hard: Hardening, flavour: Flavour) -> list[dict[str, Any]]:
    limits: list[dict[str, Any]] = [{"Name": "core", "Soft": 0, "Hard": 0}]
    if hard.nofile is not None:
        limits.append({"Name": "nofile", "Soft": hard.nofile[0], "Hard": hard.nofile[1]})
    if flavour == "podman":
        # By default podman raises this one to 2^20, which fails if its service may not raise any.
        # It counts all processes of a user id; a container is limited by its pids limit.
        limits.append({"Name": "nproc", "Soft": PODMAN_PROCESSES, "Hard": PODMAN_PROCESSES})
    return limits


def _log_config(hard: Hardening, flavour: Flavour) -> dict[str, Any]:
    options = {"max-size": f"{hard.log_bytes}"}
    if flavour == "docker":
        options["max-file"] = str(hard.log_files)
    return {"Type": "json-file" if flavour == "docker" else "k8s-file", "Config": options}


def _mounts(spec: ContainerSpec, place: HostPaths) -> list[dict[str, Any]]:
    wanted = [
        (place.zipapp, layout.ZIPAPP, True),
        (place.wrappers, layout.BIN, True),
        (spec.runtime_dir, RELAY_DIR, False),
        (place.spool, layout.SPOOL, False),
        # A mount below another one's target must come after it.
        *sorted(
            ((mount.source, mount.target, mount.read_only) for mount in spec.mounts),
            key=lambda item: item[1].count("/"),
        ),
    ]
    return [
        {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}
        for source, target, read_only in wanted
    ]


def _tmpfs(spec: ContainerSpec, hard: Hardening) -> dict[str, str]:
    # Without `exec` docker mounts it noexec, and builds and test runners work in /tmp. Owners
    # cannot be set (podman 4 refuses uid=), hence the modes.
    room = spec.limits.tmp_bytes or 256 * MIB
    found = {
        "/tmp": f"rw,nosuid,nodev,exec,size={room},mode=1777",  # noqa: S108 -- inside
        "/run": f"rw,nosuid,nodev,size={16 * MIB},mode=755",
    }
    if not any(mount.target == layout.AGENT_HOME for mount in spec.mounts):
        found[layout.AGENT_HOME] = f"rw,nosuid,nodev,exec,size={hard.home_bytes},mode=1777"
    return found
