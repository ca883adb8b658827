"""The program of a node: a server, in the process of the node's Ray actor.

It serves until it has to stop, or until the others have given the node up. In that case it
leaves its agents as they are and ends the process: Ray starts it again, with a new epoch.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from oubliette.actors.store.actor import GetStoreState
from oubliette.cluster.node_context import LOST_EXIT
from oubliette.config.loader import load
from oubliette.errors import ConfigError, InvalidParameter
from oubliette.kit.fair_loop import run_fairly
from oubliette.node.spec import NodeSpec
from oubliette.runtime.files.home import prepare
from oubliette.runtime.store.postgres.cluster import nodes
from oubliette.server import running
from oubliette.server.startup import STORES

if TYPE_CHECKING:
    from oubliette.cluster.node_context import NodeContext
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.server import Server

HOME: Final = "home"
"""Setting: folder with the homes of nodes; that of a node has the node's name."""

_log = structlog.get_logger("oubliette.cluster")


async def main(context: NodeContext) -> None:
    """Run the server of a node until it is to stop.

    Its configuration is that of its home, as for a server that is alone: the URL of the database,
    which may have a password, is no setting that Ray keeps.

    Raises:
        ConfigError: the node has no home, or its configuration or database is unusable.
    """
    await serve(context)


async def serve(context: NodeContext, *, runtime: ContainerRuntime | None = None) -> None:
    """Do the same as `main`, with a container runtime instead of the configured one.

    Raises:
        ConfigError: as `main` does.
    """
    start = context.start
    if HOME not in start.settings:
        raise ConfigError(f"settings.{HOME} is missing", hint="name the folder of the nodes' homes")
    home = Path(start.settings[HOME]) / start.node
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    prepare(home)
    config = (await asyncio.to_thread(load, home)).config
    spec = NodeSpec(name=start.node, transport=context.transport)
    run_fairly(asyncio.get_running_loop())
    async with running(home, config, node=spec, runtime=runtime) as server:
        context.handler = NodeRequests(server).answer
        context.ready = True
        stopping = asyncio.create_task(context.stopping.wait(), name="stop of the node")
        try:
            await asyncio.wait({stopping, server.failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            context.ready = False
            context.handler = None
    if server.failed.done():
        _log.critical("the node ends, to be started again", reason=server.failed.result())
        # Ray restarts a process that was not ended through Ray, without the agent.
        os._exit(LOST_EXIT)


class NodeRequests:
    """Answers to what the agent and the command line ask of a node."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def answer(self, verb: str, body: bytes) -> bytes:
        """Answer a request with JSON.

        Raises:
            InvalidParameter: there is no such verb.
        """
        del body
        if verb != "status":
            raise InvalidParameter(f"a node does not answer {verb!r}", field="verb")
        return msgspec.json.encode(await self._status())

    async def _status(self) -> dict[str, Any]:
        server = self._server
        node = server.node
        assert node is not None, "a node's program runs a node"
        store = await server.system.ref(f"{STORES}/store").ask(GetStoreState(), timeout=5.0)
        found = await node.membership.control.run(nodes.all_nodes)
        mine = next(each for each in found if each.name == node.membership.name)
        return {
            "node": mine.name,
            "pid": os.getpid(),
            "url": server.url,
            "epoch": node.membership.fence.epoch,
            "state": mine.state,
            "lease_seconds": round(mine.lease_seconds, 3),
            "live_sessions": len(server.context.session_registry),
            "projects": len(await node.homes.projects_here()),
            "store": store.state,
        }
