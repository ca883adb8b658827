"""Servers of a cluster in one process: real servers and a real database, with messages in memory."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from oubliette.api.control import ControlClient
from oubliette.config.loader import load
from oubliette.node.spec import NodeSpec
from oubliette.runtime.store.postgres.cluster.nodes import set_draining
from oubliette.server import running
from tests.unit.kit.remote.network import Network

if TYPE_CHECKING:
    from typing import Self

    from oubliette.server import Server


class Nodes:
    """Nodes that share the database at `url`; each has a home of its own and serves HTTP."""

    def __init__(self, url: str, **settings: object) -> None:
        self.servers: dict[str, Server] = {}
        self.network = Network()
        # Short, because sockets lie below it; others pass it, because agents may be other users.
        self.folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
        self.folder.chmod(0o711)
        self._stacks: dict[str, contextlib.AsyncExitStack] = {}
        self.url = url
        self._settings: dict[str, object] = {
            "store.database": url,
            "server.port": 0,
            "server.on_stop": "end",
            "process.sandbox": "bubblewrap" if shutil.which("bwrap") else "best-effort",
            "containers.runtime": "process",
            "cluster.machine_lost_seconds": 10,
            **settings,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for name in list(self._stacks):
                await self.stop(name)
        finally:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def start(self, *names: str, **settings: object) -> None:
        """Start nodes, one after the other."""
        for name in names:
            home = self.folder / name
            home.mkdir(exist_ok=True)
            home.chmod(0o711)
            given = {**self._settings, "containers.runtime_dir": str(home / "r"), **settings}
            config = load(home, {}, given).config
            spec = NodeSpec(name=name, transport=self.network.node(name))
            stack = contextlib.AsyncExitStack()
            self.servers[name] = await stack.enter_async_context(running(home, config, node=spec))
            self._stacks[name] = stack

    async def stop(self, name: str) -> None:
        """Stop a node in order."""
        await self._stacks.pop(name).aclose()
        del self.servers[name]
        if name in self.network.nodes:
            self.network.cut(name, "stopped")

    def drain(self, name: str, *, draining: bool = True) -> None:
        """Let a node be drained, or not any more."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            set_draining(connection, name, draining=draining)

    def give_up(self, name: str) -> None:
        """Record a node as if it had stood still for longer than its lease, and was given up."""
        node = self.servers[name].node
        assert node is not None
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "UPDATE nodes SET lease_until = clock_timestamp() - interval '1 minute',"
                " epoch = epoch + 1, state = 'gone' WHERE name = %s AND epoch = %s",
                node.membership.fence.parameters,
            )

    async def key(self, node: str, scope: str = "admin") -> str:
        """Return a new key, made on this node."""
        made = await self.control(node, "token_create", scope=scope, name="test")
        return str(made["token"])

    async def control(self, node: str, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool as the operator of a node."""

        def call() -> dict[str, Any]:
            with ControlClient(self.folder / node) as client:
                return client.call(tool, arguments)

        return await asyncio.to_thread(call)
