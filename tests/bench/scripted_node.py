"""The program of a node whose containers have no processes: `scripted_guests` plays them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette.cluster import server_node
from oubliette.errors import NotFound
from oubliette.runtime.containers.base import (
    Capabilities,
    ContainerInfo,
    ContainerSpec,
    Logs,
    RuntimeStatus,
)

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

    from oubliette.cluster.node_context import NodeContext
    from oubliette.runtime.containers.base import ContainerState, Dial

GUESTS: Final = "guests"
"""Setting: folder with the sockets of the processes that play guests, one for each node."""
NAME: Final = "standin"


def guests_socket(folder: Path, node: str) -> Path:
    """The socket of the process that plays the guests of a node."""
    return folder / f"{node}.sock"


class ScriptedContainers:
    """A `ContainerRuntime` that starts nothing: its containers are names and keys."""

    name = NAME
    capabilities = Capabilities(
        survives_server=False,
        sockets_cross=True,
        network_none=True,
        network_host=True,
        images=False,
        uid_per_container=False,
        isolation="none",
    )

    def __init__(self, guests: Path) -> None:
        self._guests = str(guests)
        self._specs: dict[str, ContainerSpec] = {}
        self._keys: dict[str, bytes] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def _info(self, container_id: str, state: ContainerState) -> ContainerInfo:
        spec = self._specs.get(container_id)
        if spec is None:
            raise NotFound(f"there is no container {container_id}")
        return ContainerInfo(
            id=container_id, state=state, labels=spec.labels, runtime_dir=spec.runtime_dir
        )

    async def ping(self) -> RuntimeStatus:
        """Return that it works."""
        return RuntimeStatus(ok=True)

    async def image_exists(self, image: str) -> bool:
        """Return that it needs none."""
        del image
        return True

    async def image(self, image: str) -> None:
        """Return that it has none."""

    async def pull(self, image: str, **_: Any) -> None:
        """Do nothing."""

    async def build(self, image: str, folder: Path, **_: Any) -> Logs:
        """Do nothing."""
        del image, folder
        return Logs(text="")

    async def create(self, spec: ContainerSpec) -> ContainerInfo:
        """Note a container."""
        self._specs[spec.id] = spec
        return self._info(spec.id, "created")

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Note its key, by which its guest knows it."""
        del timeout
        self._keys[container_id] = key
        self._ends[container_id] = asyncio.Event()
        return self._info(container_id, "running")

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it."""
        del timeout
        self._keys.pop(container_id, None)
        if (end := self._ends.pop(container_id, None)) is not None:
            end.set()
        return self._info(container_id, "exited")

    async def remove(self, container_id: str) -> None:
        """End it and forget it."""
        if container_id in self._specs:
            await self.stop(container_id)
            del self._specs[container_id]

    async def inspect(self, container_id: str) -> ContainerInfo:
        """Return its state."""
        running = container_id in self._keys
        return self._info(container_id, "running" if running else "exited")

    async def logs(self, container_id: str, *, tail: int = 1000) -> Logs:
        """Return nothing."""
        del container_id, tail
        return Logs(text="")

    async def adopt(self, instance: str) -> list[ContainerInfo]:
        """Return none: they end with this process."""
        del instance
        return []

    async def watch(self, container_id: str) -> ContainerInfo:
        """Wait for its end."""
        info = self._info(container_id, "exited")
        if (end := self._ends.get(container_id)) is not None:
            await end.wait()
        return info

    def dial(self, info: ContainerInfo) -> Dial:
        """Return how its guest is reached: a real connection, which begins with the key."""
        key = self._keys[info.id]

        async def dial(limit: int) -> tuple[StreamReader, StreamWriter]:
            reader, writer = await asyncio.open_unix_connection(self._guests, limit=limit)
            writer.write(key.hex().encode() + b"\n")
            return reader, writer

        return dial

    async def aclose(self) -> None:
        """Do nothing: it holds nothing."""


async def main(context: NodeContext) -> None:
    """Run a node's server with these containers."""
    start = context.start
    guests = guests_socket(Path(start.settings[GUESTS]), start.node)
    await server_node.serve(context, runtime=ScriptedContainers(guests))
