"""NodeActor: the Ray actor of a node, which runs the node's program.

Ray runs the methods on loops of its own, one for each concurrency group, each in a thread. The
program is a method of the group `data`, as is what takes the batches of peers: so a batch and its
reply take no step to another thread, which costs a tenth of a call and more on a busy machine. The
group `control` has another loop: a slow handler in the program never delays a look at the node.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import structlog

from oubliette.cluster.node_context import LOST_EXIT, NodeContext, load_main
from oubliette.cluster.ray_calls import RAY, grouped
from oubliette.cluster.ray_transport import RayTransport
from oubliette.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from oubliette.cluster.node_context import NodeStart

T = TypeVar("T")

PREPARE_SECONDS: Final = 30.0
"""Time for which a call waits until the program was imported."""

BEGIN_SECONDS: Final = 30.0
"""Time in which Ray must begin to run the program; it has lost the call otherwise."""

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
        self._ended = threading.Event()
        self._deadline = threading.Timer(BEGIN_SECONDS, self._not_begun)
        self._deadline.daemon = True
        self._deadline.start()
        # A call, since only Ray can run something on the loop of a group.
        # Both are kept: Ray may forget a call to an actor without a handle.
        self._handle = RAY.get_runtime_context().current_actor
        self._run = self._handle.run.remote()

    def _not_begun(self) -> None:
        """End the process, which would run and answer for ever without being of use."""
        _log.critical("Ray did not run the program of the node", node=self._start.node)
        os._exit(LOST_EXIT)

    # ------------------------------------------------------------ the program
    @grouped("data")
    async def run(self) -> None:
        """Run the program; called once, by the actor itself."""
        if self._loop is not None:
            raise Conflict(f"The program of node {self._start.node} was started already")
        self._loop = asyncio.get_running_loop()
        self._deadline.cancel()
        try:
            await self._run_main()
            self._state = "ended"
        except BaseException as error:
            self._state, self._error = "failed", f"{type(error).__name__}: {error}"
            _log.exception("the program of the node failed", node=self._start.node)
        finally:
            self._prepared.set()
            await _end_other_tasks()
            self._ended.set()

    async def _run_main(self) -> None:
        main = load_main(self._start.main)
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
        """Run on the program's loop, from any of Ray's."""
        if self._loop is None or self._state != "running":
            work.close()
            raise Unavailable(f"The program of node {self._start.node} is not running")
        try:
            if asyncio.get_running_loop() is self._loop:
                return await work
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except Exception as error:  # of any class, which the caller may be unable to unpickle
            raise Unavailable(f"{type(error).__name__}: {error}") from None

    async def _prepare(self) -> None:
        if not self._prepared.is_set():
            await asyncio.to_thread(self._prepared.wait, PREPARE_SECONDS)

    async def _running(self) -> NodeContext:
        await self._prepare()
        if self._context is None or self._state != "running":
            why = f": {self._error}" if self._error else ""
            raise Unavailable(f"The program of node {self._start.node} has {self._state}{why}")
        return self._context

    # ------------------------------------------------------------ for peers
    @grouped("data")
    async def deliver(self, batch: bytes) -> bytes:
        """Take a batch and return the reply; empty: it is not of that peer's newest connection."""
        return await self._there((await self._running()).transport.delivered(batch))

    @grouped("control")
    async def greet(self, node: str, epoch: int, link: int) -> int:
        """Open a connection from a peer, and return the epoch of this node."""
        return await self._there((await self._running()).transport.greeted(node, epoch, link))

    @grouped("control")
    async def stay(self) -> None:
        """Never return: the failure of this call is the notice that the node is dead."""
        await asyncio.Event().wait()

    # ------------------------------------------------------------ for the agent
    @grouped("control")
    async def state(self, *, prepared: bool = False) -> dict[str, Any]:
        """Return what the node is and does; `prepared`: once its program was imported, or not."""
        if prepared:
            await self._prepare()
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
        handler = (await self._running()).handler
        if handler is None:
            raise Unavailable(f"The program of node {self._start.node} answers no requests")

        async def answer() -> bytes:
            return await handler(verb, body)

        return await self._there(answer())

    @grouped("control")
    async def stop(self, seconds: float) -> bool:
        """Ask the program to end, and return whether it has within this time."""
        if self._loop is not None and self._context is not None:
            self._loop.call_soon_threadsafe(self._context.stopping.set)
        return await asyncio.to_thread(self._ended.wait, seconds)


async def _end_other_tasks() -> None:
    """End what the program has left on its loop, which goes on without it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
