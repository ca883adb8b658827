"""The two ways over a container's boundary: how its key comes in, and links to its relay come out.

`Mounted`: the runtime folder of this side is `/mcp`; key, FIFO and socket are files in it. That
needs an engine on this very kernel. `Bridged`: nothing but plain files is shared (Docker Desktop,
other virtual machines, engines reached by TCP). `/mcp` is in the container's memory, the key goes
in over its standard input, `ready` comes out of its standard output, and each link is an exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers import runtime_dirs
from oubliette.runtime.containers.base import RELAY_DIR, RELAY_SOCKET
from oubliette.runtime.containers.docker import exec_bridge
from oubliette.runtime.containers.docker.exec_stream import STDOUT, open_stream
from oubliette.runtime.containers.process import bubblewrap
from oubliette.runtime.containers.readiness import read_ready

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from oubliette.runtime.containers.base import ContainerInfo, ContainerSpec, Dial
    from oubliette.runtime.containers.docker.address import Flavour
    from oubliette.runtime.containers.docker.client import Engine, Facts
    from oubliette.runtime.containers.errors import EngineRefused

Sockets = Literal["auto", "mount", "bridge"]
Listening: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"
"""Waits until the host says that it listens."""

READY: Final = b"ready\n"
BRIDGE_GID: Final = 65534
"""Group of the bridges. Agents have the same user, which the relay's socket asks for; as their
group is another one, they can neither trace a bridge nor open its streams."""

HANDLE: Final = "bridge"
"""In `ContainerInfo.handle`: the user of bridges, where links are bridged."""

_SPOOL_MIB: Final = 256
_RELAY_MIB: Final = 1


def choose(engine: Engine, facts: Facts, wanted: Sockets) -> bool | tuple[str, str]:
    """Whether links to this engine's containers are bridged, or why it cannot be used."""
    if wanted != "auto":
        return wanted == "bridge"
    if engine.address.path is not None:
        # One that a virtual machine's engine listens on comes with folders of this side in there.
        return not facts.local
    if facts.local:
        return True
    remedy = (
        "run the server there, or use an engine of this machine; if that one has these folders at"
        f" the same paths: {engine.flavour}.sockets = bridge"
    )
    where = f"{facts.system or engine.flavour} at {engine.where}"
    return (
        f"{where} is on another machine, where this server's folders are not",
        remedy,
    )


def bridge_user(user: str) -> str:
    """The user of bridges into containers of `user` (`uid:gid`)."""
    uid, _, gid = user.partition(":")
    return f"{uid}:{BRIDGE_GID if gid != str(BRIDGE_GID) else BRIDGE_GID - 1}"


def dial(engine: Engine, info: ContainerInfo) -> Dial:
    """How links reach the relay."""
    user = info.handle.get(HANDLE)
    if user is None:
        return info.runtime_dir / RELAY_SOCKET
    return partial(exec_bridge.dial, engine, str(info.handle["engine_id"]), str(user))


# ---------------------------------------------------------------- start


@contextlib.asynccontextmanager
async def mounted(spec: ContainerSpec, key: bytes, owner: int | None) -> AsyncGenerator[Listening]:
    """Lay the key down; gives what waits until the host listens."""
    fifo = runtime_dirs.arm(spec, key, uid=owner)
    try:
        yield lambda: read_ready(fifo)
    finally:
        os.close(fifo)
    runtime_dirs.disarm(spec.runtime_dir, started=True)


@contextlib.asynccontextmanager
async def bridged(engine: Engine, engine_id: str, key: bytes) -> AsyncGenerator[Listening]:
    """Attach to the container before it starts, and send the key on its standard input."""
    first = _FirstLine()
    path = f"/containers/{engine_id}/attach?stream=1&stdin=1&stdout=1"
    transport = await open_stream(engine, path, None, first)
    try:
        transport.write(key)
        yield first.wait
    finally:
        transport.abort()
        first.done.cancel()


class _FirstLine:
    """Waits for `ready` on standard output."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._said = b""

    async def wait(self) -> None:
        await self.done

    def output(self, kind: int, data: bytes) -> None:
        if kind == STDOUT and len(self._said) < len(READY):
            self._said += data
            if self._said.startswith(READY) and not self.done.done():
                self.done.set_result(None)

    def ended(self, error: Exception | None) -> None:
        """The container has ended, or the engine is away; which of them is told by a look at it."""

    def pause_writing(self) -> None:
        """A key fits."""

    def resume_writing(self) -> None:
        """A key fits."""


def shape_bridged(body: dict[str, Any], flavour: Flavour) -> None:
    """Change the body of a create call so that nothing but plain files crosses."""
    own = {RELAY_DIR: _RELAY_MIB, bubblewrap.SPOOL: _SPOOL_MIB}
    host: dict[str, Any] = body["HostConfig"]
    host["Mounts"] = [mount for mount in host["Mounts"] if mount["Target"] not in own]
    uid, _, gid = str(body["User"]).partition(":")
    # An owner, since runc gives a folder that the image has already the mode that it has there.
    # podman refuses uid= and has an option of its own.
    owner = f"uid={uid},gid={gid}" if flavour == "docker" else "U"
    host["Tmpfs"] |= {
        target: f"rw,nosuid,nodev,noexec,size={size << 20},mode=0700,{owner}"
        for target, size in own.items()
    }
    body |= {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True, "AttachStdout": True}
    command: list[str] = body["Cmd"]
    if "host" not in command:
        return
    for option, now in (("--key", ["--key", "-"]), ("--ready", ["--ready-fd", "1"])):
        at = command.index(option)
        command[at : at + 2] = now


def explained(engine: Engine, error: EngineRefused) -> RuntimeFailure:
    """What the engine's refusal of a new container means: maybe that folders are not shared."""
    if "bind source path does not exist" not in error.message:
        return error
    return RuntimeFailure(
        f"{engine.where} does not see this server's folders: {error.message}",
        hint="share the server's home and its runtime folder with the engine, at the same paths"
        " (Docker Desktop: Settings, Resources, File sharing)",
    )
