"""Transports across a container's boundary: its key goes in, and links to its relay come out.

`Mounted`: the runtime folder of this machine is `/mcp`; key, FIFO and socket are files in it. That
needs an engine on this very kernel. `Bridged`: only regular files are shared (Docker Desktop, other
virtual machines, engines reached by TCP). `/mcp` is in the container's memory, the key is sent over
its standard input, `ready` comes over its standard output, and each link is an exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers import layout, runtime_dirs
from oubliette.runtime.containers.base import RELAY_DIR, RELAY_SOCKET
from oubliette.runtime.containers.bridge_transport import read_until
from oubliette.runtime.containers.docker import exec_bridge
from oubliette.runtime.containers.docker.exec_stream import STDOUT, open_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from oubliette.runtime.containers.base import ContainerInfo, ContainerSpec, Dial
    from oubliette.runtime.containers.docker.address import Flavour
    from oubliette.runtime.containers.docker.client import Engine, Facts
    from oubliette.runtime.containers.engine_errors import EngineRefused


Sockets = Literal["auto", "mount", "bridge"]
Listening: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"
"""Waits until the guest reports that it listens."""

READY: Final = b"ready\n"
BRIDGE_GID: Final = 65534
"""Group of the bridges. Agents have the same user, which the relay's socket requires; as their
group is another one, they can neither trace a bridge nor open its streams."""

HANDLE: Final = "bridge"
"""In `ContainerInfo.handle`: the user of bridges, if links are bridged."""

_SPOOL_MIB: Final = 256
_RELAY_MIB: Final = 1


def choose(engine: Engine, facts: Facts, wanted: Sockets) -> bool | tuple[str, str]:
    """Choose whether links to this engine's containers are bridged; raise if it is unusable."""
    if wanted != "auto":
        return wanted == "bridge"
    if engine.address.path is not None:
        # The socket of a virtual machine's engine implies that folders of this machine are shared.
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
    """Way of links to the relay."""
    user = info.handle.get(HANDLE)
    if user is None:
        return info.runtime_dir / RELAY_SOCKET
    return partial(exec_bridge.dial, engine, str(info.handle["engine_id"]), str(user))


# ---------------------------------------------------------------- start


async def _listening(fifo: int) -> None:
    await read_until(fifo, lambda data: b"\n" in data)


@contextlib.asynccontextmanager
async def mounted(spec: ContainerSpec, key: bytes, owner: int | None) -> AsyncGenerator[Listening]:
    """Write the key; return a function that waits until the guest listens."""
    fifo = runtime_dirs.arm(spec, key, uid=owner)
    try:
        yield lambda: _listening(fifo)
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
    """Receiver that waits for `ready` on standard output."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = b""

    async def wait(self) -> None:
        await self.done

    def output(self, kind: int, data: bytes) -> None:
        if kind == STDOUT and len(self._received) < len(READY):
            self._received += data
            if self._received.startswith(READY) and not self.done.done():
                self.done.set_result(None)

    def ended(self, error: Exception | None) -> None:
        """Note the end of the container or of the engine; an inspection shows which."""

    def pause_writing(self) -> None:
        """Do nothing: a key fits into the buffer."""

    def resume_writing(self) -> None:
        """Do nothing: a key fits into the buffer."""


def shape_bridged(body: dict[str, Any], flavour: Flavour) -> None:
    """Change the body of a create call so that only regular files are shared."""
    own = {RELAY_DIR: _RELAY_MIB, layout.SPOOL: _SPOOL_MIB}
    host: dict[str, Any] = body["HostConfig"]
    host["Mounts"] = [mount for mount in host["Mounts"] if mount["Target"] not in own]
    uid, _, gid = str(body["User"]).partition(":")
    # With an owner, since runc gives a folder that the image has already the mode that it has
    # there. podman refuses uid= and has an option of its own.
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
    """The error for the engine's refusal of a container: maybe folders are not shared."""
    if "bind source path does not exist" not in error.message:
        return error
    return RuntimeFailure(
        f"{engine.where} does not see this server's folders: {error.message}",
        hint="share the server's home and its runtime folder with the engine, at the same paths"
        " (Docker Desktop: Settings, Resources, File sharing)",
    )
