"""The port behind which containers live.

A runtime knows images, mounts, networks and one process: the host. Everything that
happens inside (processes, streams, sessions' links) is done once, above this port, on the host
protocol. Runtimes differ in what they can; they say it in `Capabilities` and are asked for
nothing else.
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
"""How our own programs are started: nothing of an agent's workspace or environment is imported, nor
`site`, whose packages nothing of ours uses and which is half of an interpreter's start."""

MIB: Final = 1 << 20

ContainerState: TypeAlias = Literal["created", "running", "exited", "unknown"]

Progress: TypeAlias = "Callable[[str], object]"
"""Is told how far something long is, a line at a time, at most about once a second; on the loop."""

Dialer: TypeAlias = "Callable[[int], Awaitable[tuple[StreamReader, StreamWriter]]]"
"""Opens one more connection to the relay; the argument is the reader's limit in bytes."""

Dial: TypeAlias = "Path | Dialer"
"""How the host link reaches a relay: a socket on this side, or a way to make a stream to it."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime can do; the conformance suite asks exactly this."""

    survives_server: bool
    """Containers go on when the server is killed, and are found again by their labels."""
    sockets_cross: bool
    """The relay's socket can be opened from this side; otherwise links are bridged."""
    network_none: bool
    network_host: bool
    images: bool
    """Containers come from images that can be pulled and built."""
    uid_per_container: bool
    """`ContainerSpec.uid` is honoured."""
    isolation: Literal["container", "none"]
    """`none`: agents can reach whatever the server's user can; every session says so."""
    exit_codes: bool = True
    """It is known how a container's own process ended; otherwise `exit_code` is always None."""


class Mount(msgspec.Struct, frozen=True):
    """One folder or file of this side, seen inside at `target`."""

    source: Path
    target: str
    """Absolute, inside."""
    read_only: bool = False


class ContainerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a whole container; None = the engine's own. Engines ignore what they cannot do.

    Limits of single processes are the host's (`StartProcess.limits`).
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    tmp_bytes: int | None = 1 << 30
    """Room in `/tmp`."""


class Hardening(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine closes a container: all of it by default.

    Engines ignore what they cannot do; the conformance suite says which.
    """

    memory_bytes: int | None = 6144 * MIB
    """Of a container as a whole, its tmpfs included; no swap beyond it. None = no limit. Here and
    for `cpus` and `pids`, the spec's own limits go first."""
    cpus: float | None = 2.0
    pids: int | None = 1024
    read_only: bool = True
    """The image's file system cannot be written."""
    drop_capabilities: bool = True
    cap_add: tuple[str, ...] = ()
    """Capabilities without `CAP_` that are there all the same."""
    no_new_privileges: bool = True
    init: bool = True
    """The engine's init is process 1 and reaps."""
    ipc: Literal["private", "shareable", "host"] = "private"
    nofile: tuple[int, int] | None = (4096, 8192)
    """Soft and hard limit of open files; None = the engine's."""
    shm_bytes: int = 256 * MIB
    home_bytes: int = 256 * MIB
    """HOME where nothing is mounted there."""
    oom_score: int | None = 500
    """The kernel ends agents before the server when memory is short."""
    log_bytes: int = 10 * MIB
    log_files: int = 3
    oci_runtime: str | None = None
    """`runsc` for gVisor; verified to exist before use. None = the engine's default."""


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a container is made of."""

    id: str
    labels: dict[str, str]
    """At least `LABEL_INSTANCE` and `LABEL_CONTAINER` (= `id`); all are found again by `adopt`."""
    runtime_dir: Path
    """Made by `folders.new_runtime_dir`; seen inside as `/mcp`, holds `relay.sock`."""
    spool_dir: Path | None = None
    """Folder for output that no server has read yet, of this container alone: it is removed with
    it. None = one beside `runtime_dir`."""
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = {}
    """Environment of the host. Visible to its user; secrets of agents do not belong here."""
    network: str = "none"
    """`none`, `host`, `bridge`, or the name of an engine's network."""
    uid: int | None = None
    """User (and group) id that agents run under, where `uid_per_container`."""
    limits: ContainerLimits = ContainerLimits()
    hardening: Hardening | None = None
    """How an engine closes it; None = as the runtime was told when it was made."""
    command: tuple[str, ...] | None = None
    """What runs as the container; None = the host of the zipapp."""
    orphan_grace: float = 600.0
    """Seconds without a server after which the host ends its agents and itself."""
    accept_bare: bool = False
    """Let clients that know only the headers of the relay's first form in (`relay.accept_bare`)."""


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What a program that is to run in a container must know of it."""

    python: str = "python3"
    """The interpreter, as seen inside."""
    zipapp: str = "/opt/oubliette/oubliette.pyz"
    relay_socket: str = "/mcp/relay.sock"
    env: dict[str, str] = {}
    """Environment that every process started there needs (PATH, LANG, …); add to it."""
    places: dict[str, str] = {}
    """Where mount targets really are, for runtimes that cannot mount; empty = at their targets."""
    uid: int | None = None
    """User id to name in `StartProcess`; None = the host's own."""
    stranger: int | None = None
    """Where files are used in the places that they have on this side: the user who uses them, if
    that is not the server's."""

    def program(self, name: str) -> tuple[str, ...]:
        """The command line of a program of the zipapp, such as `client`."""
        return (self.python, *ISOLATED, self.zipapp, name)

    def path(self, path: str) -> str:
        """Where `path` (absolute, as documented, like `/workspace/…`) is for a process inside."""
        path = posixpath.normpath(path)
        for target in sorted(self.places, key=len, reverse=True):
            if path == target or path.startswith(target.rstrip("/") + "/"):
                return self.places[target] + path[len(target.rstrip("/")) :]
        return path


class ContainerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A container as its runtime sees it now."""

    id: str
    state: ContainerState
    labels: dict[str, str]
    runtime_dir: Path
    handle: dict[str, Any] = {}
    """What the runtime needs to find it again; plain JSON, kept in the store."""
    inside: Inside = Inside()
    started_at: float | None = None
    """Wall-clock second."""
    exit_code: int | None = None
    """128 + the signal for a killed one; None when it is not known."""
    isolation: Literal["container", "none"] = "container"
    warnings: tuple[str, ...] = ()
    """What the user should hear at every start (`best-effort`)."""


class RuntimeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a runtime can be used here; `remedy` is what to do if not."""

    ok: bool
    version: str | None = None
    reason: str | None = None
    remedy: str | None = None


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An image that an engine has. Times are wall-clock seconds; None: the engine does not say."""

    id: str
    """The engine's, such as `sha256:…`."""
    size_bytes: int | None = None
    """On this machine, layers shared with other images counted in full."""
    built_at: float | None = None
    arrived_at: float | None = None
    """When it was last pulled, built or tagged here, as far as the engine keeps that."""


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """The end of what a container's own process has written."""

    text: str
    truncated: bool = False


class ContainerRuntime(Protocol):
    """An engine that runs containers. All methods may be called from one event loop, side by side.

    Errors are `RuntimeFailure` (the message says which step failed and what to do), `NotFound` for
    an id that the runtime does not know, `InvalidParameter` for a spec that it cannot honour.
    """

    @property
    def name(self) -> str:
        """`process`, `docker`, `podman`, `apple`."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this runtime can do on this machine; final after the first `ping`."""
        ...

    async def ping(self) -> RuntimeStatus:
        """Try it, with the real thing where that is cheap; never raises."""
        ...

    async def image_exists(self, image: str) -> bool:
        """Whether `image` is there without a pull; always true where there are no images."""
        ...

    async def image(self, image: str) -> ImageInfo | None:
        """What is known of `image`; None: it is not there, or there are no images."""
        ...

    async def pull(self, image: str, *, timeout: float, progress: Progress | None = None) -> None:
        """Fetch `image`.

        Raises:
            RuntimeFailure: one of `image_errors`, where it is known what went wrong.
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
        """Make a container without starting it. What is half made when this raises is removed."""
        ...

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Start it and return when its relay listens.

        `key` (32 random bytes, new at each start) reaches the host through `/mcp/key`, which it
        removes before any agent starts. Starting a running container is an error.
        """
        ...

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it: politely, then after `timeout` seconds for good. Nothing of it lives afterwards.

        Stopping one that is not running does nothing.
        """
        ...

    async def remove(self, container_id: str) -> None:
        """Kill it if need be and remove every trace; removing twice does nothing."""
        ...

    async def inspect(self, container_id: str) -> ContainerInfo:
        """Look at it now."""
        ...

    async def logs(self, container_id: str, *, tail: int = 1000) -> Logs:
        """The last `tail` lines of what its own process wrote, at most 1 MiB."""
        ...

    async def adopt(self, instance: str) -> list[ContainerInfo]:
        """Every container with our instance label, running or not, half-made ones included.

        They are known to this object afterwards. Containers of other instances are not touched.
        """
        ...

    async def watch(self, container_id: str) -> ContainerInfo:
        """Wait until it has ended. Adopted ones too; no polling. Cancelling ends only the wait."""
        ...

    def dial(self, info: ContainerInfo) -> Dial:
        """How `HostLink.connect` reaches its relay."""
        ...

    async def aclose(self) -> None:
        """Let go of what this object holds. Containers go on."""
        ...
