"""Interface of container runtimes.

A runtime handles images, mounts, networks and one process: the guest. Everything inside (processes,
streams, sessions' links) is implemented once, above this interface, on the guest protocol. Runtimes
differ in what they support; `Capabilities` declares it, and nothing else is requested of them.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Awaitable, Callable, Mapping

LABEL_INSTANCE: Final = "dev.oubliette.instance"
LABEL_PROJECT: Final = "dev.oubliette.project"
LABEL_CONTAINER: Final = "dev.oubliette.container"
LABEL_SPEC: Final = "dev.oubliette.spec-hash"

RELAY_DIR: Final = "/mcp"
RELAY_SOCKET: Final = "relay.sock"
KEY_FILE: Final = "key"

ISOLATED: Final = ("-I", "-S")
"""Options of the interpreter for our own programs: nothing of an agent's workspace or environment
is imported, nor `site`, whose packages nothing of ours uses and which is half of an interpreter's
start."""

MIB: Final = 1 << 20

ContainerState: TypeAlias = Literal["created", "running", "exited", "unknown"]

Progress: TypeAlias = "Callable[[str], object]"
"""Callback for the progress of a long call: one line, at most about once a second, on the loop."""

Dialer: TypeAlias = "Callable[[int], Awaitable[tuple[StreamReader, StreamWriter]]]"
"""Opens one more connection to the relay; the argument is the reader's limit in bytes."""

Dial: TypeAlias = "Path | Dialer"
"""Address of a relay: a socket on this machine, or a function that opens a stream to it."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Features of a runtime; the conformance suite tests exactly these."""

    survives_server: bool
    """Containers go on when the server is killed, and are found again by their labels."""
    sockets_cross: bool
    """The relay's socket can be opened on this machine; otherwise links are bridged."""
    network_none: bool
    network_host: bool
    images: bool
    """Containers come from images that can be pulled and built."""
    uid_per_container: bool
    """`ContainerSpec.uid` is honoured."""
    isolation: Literal["container", "none"]
    """`none`: agents can reach everything that the server's user can; every session reports it."""
    commits: bool = False
    """A container's file system can be stored as an image: the runtime is an `ImageCommits`."""
    exit_codes: bool = True
    """The exit of a container's own process is known; otherwise `exit_code` is always None."""


class Mount(msgspec.Struct, frozen=True):
    """One folder or file of this machine, mounted inside at `target`."""

    source: Path
    target: str
    """Absolute, inside."""
    read_only: bool = False


class ContainerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a whole container; None = the engine's own. Engines ignore unsupported ones.

    Limits of single processes are the guest's (`StartProcess.limits`).
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    tmp_bytes: int | None = 1 << 30
    """Size of `/tmp`."""


class Hardening(msgspec.Struct, frozen=True, kw_only=True):
    """Hardening of a container by its engine: all of it by default.

    Engines ignore unsupported options; the conformance suite records which.
    """

    memory_bytes: int | None = 6144 * MIB
    """Of a container as a whole, its tmpfs included; no swap beyond it. None = no limit. Here and
    for `cpus` and `pids`, the spec's own limits take precedence."""
    cpus: float | None = 2.0
    pids: int | None = 1024
    read_only: bool = True
    """The image's file system is read-only."""
    drop_capabilities: bool = True
    cap_add: tuple[str, ...] = ()
    """Capabilities, without `CAP_`, that are kept."""
    no_new_privileges: bool = True
    init: bool = True
    """The engine's init is process 1 and reaps."""
    ipc: Literal["private", "shareable", "host"] = "private"
    nofile: tuple[int, int] | None = (4096, 8192)
    """Soft and hard limit of open files; None = the engine's."""
    shm_bytes: int = 256 * MIB
    home_bytes: int = 256 * MIB
    """HOME if nothing is mounted there."""
    oom_score: int | None = 500
    """The kernel kills agents before the server when memory is short."""
    log_bytes: int = 10 * MIB
    log_files: int = 3
    oci_runtime: str | None = None
    """`runsc` for gVisor; verified to exist before use. None = the engine's default."""


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of a container."""

    id: str
    labels: dict[str, str]
    """At least `LABEL_INSTANCE` and `LABEL_CONTAINER` (= `id`); `adopt` restores all of them."""
    runtime_dir: Path
    """Made by `host_paths.new_runtime_dir`; seen inside as `/mcp`, holds `relay.sock`."""
    spool_dir: Path | None = None
    """Folder for this container's output that no server has read yet; removed with the container.
    None = one beside `runtime_dir`."""
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = {}
    """Environment of the guest. Visible to its user; secrets of agents do not belong here."""
    network: str = "none"
    """`none`, `host`, `bridge`, or the name of an engine's network; a sandbox has `auto` and `own`
    too."""
    loopback_ports: tuple[int, ...] = ()
    """Ports of this machine's loopback interface that a sandbox with its own network reaches."""
    uid: int | None = None
    """User (and group) id of the agents, where `uid_per_container`."""
    limits: ContainerLimits = ContainerLimits()
    hardening: Hardening | None = None
    """Hardening by the engine; None = the runtime's default."""
    command: tuple[str, ...] | None = None
    """Command of the container; None = the guest of the zipapp."""
    orphan_grace: float = 600.0
    """Seconds without a server after which the guest ends its agents and itself."""
    accept_bare: bool = False
    """Accept clients that only know the headers of the relay's first form (`relay.accept_bare`)."""


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """View of a container from inside, for a program that is to run there."""

    python: str = "python3"
    """The interpreter, as seen inside."""
    zipapp: str = "/opt/oubliette/oubliette.pyz"
    relay_socket: str = "/mcp/relay.sock"
    env: dict[str, str] = {}
    """Environment of every process started there (PATH, LANG, …); to be extended."""
    places: dict[str, str] = {}
    """Real paths of mount targets, for runtimes that cannot mount; empty = the targets."""
    uid: int | None = None
    """User id to name in `StartProcess`; None = the guest's own."""
    stranger: int | None = None
    """For files that are used at their paths on this machine: the user that uses them, if that is
    not the server's."""

    def program(self, name: str) -> tuple[str, ...]:
        """The command line of a program of the zipapp, such as `client`."""
        return (self.python, *ISOLATED, self.zipapp, name)

    def path(self, path: str) -> str:
        """Return `path` (absolute, as documented, like `/workspace/…`) as seen inside."""
        path = posixpath.normpath(path)
        for target in sorted(self.places, key=len, reverse=True):
            if path == target or path.startswith(target.rstrip("/") + "/"):
                return self.places[target] + path[len(target.rstrip("/")) :]
        return path


class ContainerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """State of a container as its runtime reports it."""

    id: str
    state: ContainerState
    labels: dict[str, str]
    runtime_dir: Path
    handle: dict[str, Any] = {}
    """Data of the runtime to find it again; plain JSON, kept in the store."""
    inside: Inside = Inside()
    started_at: float | None = None
    """Wall-clock second."""
    exit_code: int | None = None
    """128 + the signal for a killed one; None if unknown."""
    isolation: Literal["container", "none"] = "container"
    warnings: tuple[str, ...] = ()
    """Warning for the user at every start (`best-effort`)."""


class RuntimeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Availability of a runtime on this machine, with a remedy if it is unavailable."""

    ok: bool
    version: str | None = None
    reason: str | None = None
    remedy: str | None = None


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's image. Times are wall-clock seconds; None: unknown."""

    id: str
    """Id at the engine, such as `sha256:…`."""
    size_bytes: int | None = None
    """Size on this machine, layers shared with other images counted in full."""
    built_at: float | None = None
    arrived_at: float | None = None
    """Time of the last pull, build or tag on this machine, as far as the engine records it."""


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """End of the output of a container's own process."""

    text: str
    truncated: bool = False


class ContainerRuntime(Protocol):
    """Engine that runs containers. All methods may be called concurrently from one event loop.

    Errors are `RuntimeFailure` (the message names the step and a remedy), `NotFound` for an unknown
    id, `InvalidParameter` for a spec that the runtime does not support.
    """

    @property
    def name(self) -> str:
        """`process`, `docker`, `podman`, `apple`."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of this runtime on this machine; final after the first `ping`."""
        ...

    async def ping(self) -> RuntimeStatus:
        """Check that it works, with a real container if that is cheap; never raises."""
        ...

    async def image_exists(self, image: str) -> bool:
        """Return whether `image` is present without a pull; always true if there are no images."""
        ...

    async def image(self, image: str) -> ImageInfo | None:
        """Return the details of `image`; None: it is missing, or the runtime has no images."""
        ...

    async def pull(self, image: str, *, timeout: float, progress: Progress | None = None) -> None:
        """Pull `image`.

        Raises:
            RuntimeFailure: one of `image_errors`, if the cause is known.
        """
        ...

    async def build(
        self,
        image: str,
        folder: Path,
        *,
        timeout: float,
        arguments: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Logs:
        """Build `folder`'s Dockerfile as `image` and return the end of the build's output.

        `arguments` are its build arguments.
        """
        ...

    async def create(self, spec: ContainerSpec) -> ContainerInfo:
        """Create a container without starting it. If this raises, partial results are removed."""
        ...

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Start it and return when its relay listens.

        `key` (32 random bytes, new at each start) reaches the guest through `/mcp/key`, which it
        removes before any agent starts. Starting a running container is an error.
        """
        ...

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it with SIGTERM, then after `timeout` seconds with SIGKILL. All its processes end.

        Stopping one that is not running has no effect.
        """
        ...

    async def remove(self, container_id: str) -> None:
        """Kill it if necessary and remove all its traces; removing twice has no effect."""
        ...

    async def inspect(self, container_id: str) -> ContainerInfo: ...

    async def logs(self, container_id: str, *, tail: int = 1000) -> Logs:
        """The last `tail` lines of its own process's output, at most 1 MiB."""
        ...

    async def adopt(self, instance: str) -> list[ContainerInfo]:
        """Return every container with our instance label, running or not, incomplete ones included.

        This object can use them afterwards. Containers of other instances are not touched.
        """
        ...

    async def watch(self, container_id: str) -> ContainerInfo:
        """Wait until it has ended, adopted or not; no polling. Cancelling ends only the wait."""
        ...

    def dial(self, info: ContainerInfo) -> Dial:
        """Way of `ControlLink.connect` to its relay."""
        ...

    async def aclose(self) -> None:
        """Release this object's resources. Containers go on."""
        ...


class ImageCommits(Protocol):
    """Part of a runtime whose `Capabilities.commits` is true."""

    async def commit(
        self, container_id: str, image: str, *, labels: Mapping[str, str], timeout: float
    ) -> ImageInfo:
        """Store a container's file system as `image`, without what is mounted in it.

        Raises:
            NotFound: there is no such container.
            RuntimeFailure: it cannot be stored, or not in `timeout` seconds.
        """
        ...

    async def drop_images(self, label: str, *, but: str | None = None) -> None:
        """Remove the images with the label `name=value` that nothing uses; not that named `but`."""
        ...
