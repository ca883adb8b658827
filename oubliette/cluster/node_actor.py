"""NodeActor: the Ray actor of a node, which runs the node's program on a loop of its own.

Ray runs the methods on loops of its own, one for each concurrency group. The program has its own
thread and loop: a slow handler in it never delays Ray, and Ray's work never delays the handler more
than the interpreter's lock does. What arrives here is passed on to that loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import structlog

from oubliette.cluster.node_context import NodeContext, load_main
from oubliette.cluster.ray_calls import RAY, grouped
from oubliette.cluster.ray_transport import RayTransport
from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from oubliette.cluster.node_context import NodeStart

T = TypeVar("T")

GROUPS: Final = {"control": 1000, "data": 1000}
"""Calls at once in each group, so that no batch of frames ever delays a greeting or a stop."""

_log = structlog.get_logger("oubliette.cluster")


class NodeActor:
    """A node of the cluster; see `oubliette.cluster.nodes` for how it is started."""

    def __init__(self, start: NodeStart) -> None:
        self._start = start
        self._epoch = time.time_ns()
        self._restarted = bool(RAY.get_runtime_context().was_current_actor_reconstructed)
        self._state: Literal["starting", "running", "ended", "failed"] = "starting"
        self._error: str | None = None
        self._context: NodeContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._prepared = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oubliette-node", daemon=True)
        self._thread.start()
        self._prepared.wait(30)

    # ------------------------------------------------------------ the program
    def _run(self) -> None:
        try:
            asyncio.run(self._run_main())
            self._state = "ended"
        except BaseException as error:
            self._state, self._error = "failed", f"{type(error).__name__}: {error}"
            _log.exception("the program of the node failed", node=self._start.node)
        finally:
            self._prepared.set()

    async def _run_main(self) -> None:
        main = load_main(self._start.main)
        self._loop = asyncio.get_running_loop()
        transport = RayTransport(self._start.node, self._epoch)
        self._context = NodeContext(
            self._start, self._epoch, self._restarted, transport, asyncio.Event()
        )
        self._state = "running"
        self._prepared.set()
        try:
            await main(self._context)
        finally:
            await transport.close()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the program's loop, from one of Ray's."""
        if self._loop is None or self._state != "running":
            work.close()
            raise Unavailable(f"The program of node {self._start.node} is not running")
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except Exception as error:  # of any class, which the caller may be unable to unpickle
            raise Unavailable(f"{type(error).__name__}: {error}") from None

    def _running(self) -> NodeContext:
        if self._context is None or self._state != "running":
            why = f": {self._error}" if self._error else ""
            raise Unavailable(f"The program of node {self._start.node} has {self._state}{why}")
        return self._context

    # ------------------------------------------------------------ for peers
    @grouped("data")
    async def deliver(self, batch: bytes) -> bool:
        """Take a batch of frames; False: its connection is not the newest of that peer."""
        return await self._there(self._running().transport.delivered(batch))

    @grouped("control")
    async def greet(self, node: str, epoch: int, link: int) -> int:
        """Open a connection from a peer, and return the epoch of this node."""
        return await self._there(self._running().transport.greeted(node, epoch, link))

    @grouped("control")
    async def stay(self) -> None:
        """Never return: the failure of this call is the notice that the node is dead."""
        await asyncio.Event().wait()

    # ------------------------------------------------------------ for the agent
    @grouped("control")
    async def state(self) -> dict[str, Any]:
        """Return what the node is and does."""
        return {
            "node": self._start.node,
            "state": self._state,
            "ready": bool(self._context and self._context.ready),
            "error": self._error,
            "epoch": self._epoch,
            "restarted": self._restarted,
            "pid": os.getpid(),
            "main": self._start.main,
        }

    @grouped("control")
    async def request(self, verb: str, body: bytes) -> bytes:
        """Pass a request of the agent on to the program."""
        handler = self._running().handler
        if handler is None:
            raise Unavailable(f"The program of node {self._start.node} answers no requests")

        async def answer() -> bytes:
            return await handler(verb, body)

        return await self._there(answer())

    @grouped("control")
    async def stop(self, seconds: float) -> bool:
        """Ask the program to end, and return whether it has within this time."""
        if self._loop is not None and self._context is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._context.stopping.set)
        await asyncio.to_thread(self._thread.join, seconds)
        return not self._thread.is_alive()
