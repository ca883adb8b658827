"""Command lines for Apple's `container`, with checked arguments.

Its rules: options come before the first positional, and what follows that belongs to the process
in the container, `--` included, so `--` is never sent; a value that begins with `-` is passed as
`--opt=-v`; processors are whole numbers, memory is in MiB; volumes and sockets are split at each
`:`, mounts at each `,`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from oubliette.errors import InvalidParameter
from oubliette.runtime.containers import layout
from oubliette.runtime.containers.base import ISOLATED, KEY_FILE, MIB, RELAY_DIR, RELAY_SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from oubliette.runtime.containers.base import ContainerSpec, Hardening, Mount

KIT: Final = f"{layout.OPT}/kit"
"""Inside: the zipapp and its wrappers, as one shared folder; agents' programs lie beside it."""
ZIPAPP: Final = f"{KIT}/oubliette.pyz"
KEY_DIR: Final = "/var/lib/oubliette"
"""Inside: the folder that is shared only for the key. A socket cannot lie in a shared folder."""
READY: Final = f"{RELAY_DIR}/ready"
"""Inside: the FIFO on which the guest reports that it listens."""
RELAY: Final = f"{RELAY_DIR}/{RELAY_SOCKET}"

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,62}")
_RELAY_DIR_BYTES: Final = MIB


def option(name: str, value: str) -> list[str]:
    """One option with its value.

    Raises:
        ValueError: the value cannot be an argument of a program.
    """
    if "\0" in value:
        raise ValueError(f"{name}: a zero byte")
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


def name_of(container_id: str) -> str:
    """The name of a container of ours.

    Raises:
        InvalidParameter: the id does not form a valid name.
    """
    name = f"oubliette-{container_id}"
    if _NAME.fullmatch(name) is None:
        raise InvalidParameter(f"id: {container_id!r} makes no name of a container", field="id")
    return name


def processors(cpus: float) -> str:
    """The number of processors, rounded up."""
    return str(max(1, math.ceil(cpus)))


def memory(size: int) -> str:
    """The memory in MiB, rounded up."""
    return f"{max(1, math.ceil(size / MIB))}M"


def volume(mount: Mount) -> list[str]:
    """The option for a folder or file of this machine.

    Raises:
        InvalidParameter: its path cannot be written.
    """
    source, target = str(mount.source), mount.target
    if ":" not in source + target:
        return option("--volume", f"{source}:{target}{':ro' if mount.read_only else ''}")
    if "," not in source + target and "=" not in source + target and mount.source.is_dir():
        text = f"type=bind,source={source},target={target}"
        return option("--mount", f"{text},readonly" if mount.read_only else text)
    raise InvalidParameter(
        f"mounts: container cannot be told of {source} at {target}",
        field="mounts",
        hint="choose a path without `:`",
    )


def tmpfs(target: str, size: int, mode: str = "1777") -> list[str]:
    return option("--mount", f"type=tmpfs,target={target},size={memory(size)},mode={mode}")


def published(host: Path) -> list[str]:
    """The option for the relay's socket.

    Raises:
        InvalidParameter: its path cannot be written.
    """
    if ":" in str(host):
        raise InvalidParameter(
            f"runtime_dir: container cannot be told of {host}",
            field="runtime_dir",
            hint="set containers.runtime_dir to a path without `:`",
        )
    return option("--publish-socket", f"{host}:{RELAY}")


def network(name: str) -> list[str]:
    """The options for a network that was checked before."""
    if name == "none":
        return ["--network", "none", "--no-dns"]
    return [] if name == "bridge" else option("--network", name)


def inside_environment() -> dict[str, str]:
    """The environment variables that every program inside needs."""
    found = layout.inside_environment()
    return {**found, "PATH": found["PATH"].replace(layout.BIN, f"{KIT}/bin")}


def environment(spec: ContainerSpec) -> dict[str, str]:
    """The environment of the guest, inherited by all that it starts except for HOME."""
    return {**layout.environment(spec), **inside_environment(), **spec.env}


def host_command(spec: ContainerSpec) -> list[str]:
    """Return the command of the container: the guest of the zipapp, or the spec's command."""
    if spec.command is not None:
        return list(spec.command)
    command = ["python3", *ISOLATED, ZIPAPP, "host", "--socket", RELAY]
    command += ["--key", f"{KEY_DIR}/{KEY_FILE}", "--spool", layout.SPOOL]
    command += ["--orphan-grace", f"{spec.orphan_grace:g}", "--ready", READY]
    if spec.accept_bare:
        command.append("--accept-bare")
    # Shown by `ps`.
    return [*command, "--label", f"dev.oubliette.container={spec.id}"]


def create(
    spec: ContainerSpec,
    hard: Hardening,
    *,
    image: str,
    user: tuple[int, int],
    labels: Mapping[str, str],
    folders: Sequence[Mount],
) -> list[str]:
    """Return `container create` for a spec; `folders` are mounted besides the spec's own.

    `hard` is for specs without their own hardening.

    Raises:
        InvalidParameter: the spec cannot be expressed in this grammar; names the field.
    """
    limits, hard = spec.limits, spec.hardening or hard
    argv = ["create", *option("--name", name_of(spec.id))]
    argv += _each("--label", (f"{name}={value}" for name, value in sorted(labels.items())))
    argv += option("--user", f"{user[0]}:{user[1]}")
    argv += option("--workdir", "/")
    argv += _each("--env", (f"{name}={value}" for name, value in sorted(environment(spec).items())))
    cpus, size = limits.cpus or hard.cpus, limits.memory_bytes or hard.memory_bytes
    if cpus is not None:
        argv += option("--cpus", processors(cpus))
    if size is not None:
        argv += option("--memory", memory(size))
    argv += option("--shm-size", memory(hard.shm_bytes))
    argv += _each("--ulimit", _ulimits(spec, hard))
    argv += option("--cap-drop", "ALL") if hard.drop_capabilities else []
    argv += _each("--cap-add", hard.cap_add)
    argv += ["--init"] if hard.init else []
    argv += ["--read-only"] if hard.read_only else []
    argv += network(spec.network)
    argv += tmpfs(RELAY_DIR, _RELAY_DIR_BYTES)
    argv += tmpfs("/tmp", limits.tmp_bytes or 256 * MIB)  # noqa: S108 -- inside
    argv += tmpfs("/run", 16 * MIB, "755")
    if not any(mount.target == layout.AGENT_HOME for mount in spec.mounts):
        argv += tmpfs(layout.AGENT_HOME, hard.home_bytes)
    # A mount below another one's target must come after it.
    for mount in sorted((*folders, *spec.mounts), key=lambda each: each.target.count("/")):
        argv += volume(mount)
    argv += published(spec.runtime_dir / RELAY_SOCKET)
    command = host_command(spec)
    return [*argv, *option("--entrypoint", command[0]), _positional(image), *command[1:]]


def execute(container: str, command: Sequence[str], *, stdin: bool = False) -> list[str]:
    return ["exec", *(["--interactive"] if stdin else []), _positional(container), *command]


def build(image: str, folder: Path, arguments: Mapping[str, str]) -> list[str]:
    argv = ["build", *option("--tag", image), "--progress", "plain"]
    argv += _each("--build-arg", (f"{name}={value}" for name, value in sorted(arguments.items())))
    return [*argv, _positional(str(folder))]


def _positional(value: str) -> str:
    if value.startswith("-") or not value or "\0" in value:
        raise InvalidParameter(f"{value!r} would be read as an option of container")
    return value


def _each(name: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in option(name, value)]


def _ulimits(spec: ContainerSpec, hard: Hardening) -> list[str]:
    found = ["core=0:0"]
    if hard.nofile is not None:
        found.append(f"nofile={hard.nofile[0]}:{hard.nofile[1]}")
    pids = spec.limits.pids or hard.pids
    if pids is not None:
        # The number of a container's processes cannot be limited. But each has a kernel of its own
        # and all in it are one user, so that user's process limit has the same effect.
        found.append(f"nproc={pids}:{pids}")
    return found
