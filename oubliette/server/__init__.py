"""Server, a running server for embedding programs and for the daemon.

`running` builds it in the stages of `oubliette.server.startup`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from oubliette.actors.root import ROOT, CriticalActorMonitor
from oubliette.config.schema import Config
from oubliette.runtime import child_exits
from oubliette.server.startup import STORES, Startup
from oubliette.tools.registry import prepare_schemas

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from oubliette.clock import Clock
    from oubliette.node.spec import NodeSpec
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.containers.runtime_spec import RuntimeSpec

log = structlog.get_logger("oubliette.server")


class Server:
    """A running server, for tests and embedding programs; `oubliette.server.daemon` runs one."""

    def __init__(self, parts: Startup) -> None:
        self._parts = parts
        self.system = parts.system
        self.context = parts.context
        self.services = parts.services
        self.keys = parts.keys
        self.url = parts.url
        """URL that clients connect to; empty without HTTP."""
        self.node = parts.node
        """Its membership of a cluster; None: it is alone."""
        self.failed = parts.failed
        """Done when a critical part has failed permanently; the result describes which."""

    @property
    def keeps_agents(self) -> bool:
        """Whether its agents outlive it."""
        return self._parts.keep_agents

    async def loaded(self) -> None:
        """Wait until everything that is imported after the start is loaded."""
        if self._parts.http:
            await self._parts.front.loaded()

    def fail(self, reason: str) -> None:
        self._parts.fail(reason)


@contextlib.asynccontextmanager
async def running(
    home: Path,
    config: Config | None = None,
    *,
    http: bool = True,
    agents: Sequence[object] = (),
    runtime: ContainerRuntime | RuntimeSpec | None = None,
    clock: Clock | None = None,
    node: NodeSpec | None = None,
) -> AsyncGenerator[Server]:
    """Run a server on `home` for the time of the `with` block.

    Args:
        home: The server's home.
        config: Its configuration; None: the defaults.
        http: Whether clients are served over HTTP; without it only this process calls the tools.
        agents: Further agents: functions with `@oubliette.agent`, or each an `AgentRuntime`.
            `auto` selects the first one.
        runtime: The container runtime, or the spec of one; None: as configured.
        clock: Time of its deadlines and timers; None: the machine's.
        node: The node of a cluster that it runs; None: it is alone.

    Raises:
        BadAgent: the function of an agent cannot be one.
        ConfigError: the home, the configuration, the sandbox, or an agent or runtime that was
            passed is unusable; contains the remedy.
        HomeInUse: another process uses this home.
        DeadlineExceeded: a stage of the start took too long.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(child_exits.kept())
        parts = Startup(
            home,
            config or Config(),
            stack,
            http=http,
            agents=agents,
            runtime=runtime,
            clock=clock,
            node=node,
        )
        await parts.run()
        server = Server(parts)
        critical = (STORES, ROOT, "front") if http else (STORES, ROOT)
        monitor = server.system.spawn(CriticalActorMonitor, critical, server.fail, name="monitor")
        stack.push_async_callback(monitor.stop)
        if http:
            schemas = asyncio.create_task(prepare_schemas(), name="schemas of the tools")
            stack.callback(schemas.cancel)
        yield server
