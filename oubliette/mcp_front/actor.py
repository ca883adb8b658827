"""FrontActor, which starts and stops the HTTP listener.

It is the last actor to start and the first to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from oubliette.actors.store.actor import GetStoreState
from oubliette.errors import Unauthenticated
from oubliette.kit import Actor, Message, Reply, handles
from oubliette.mcp_front.app import McpApp
from oubliette.mcp_front.auth import KeyChecks
from oubliette.mcp_front.git_http import fetches as git_fetches
from oubliette.mcp_front.ports import connections
from oubliette.mcp_front.tool_adapter import ToolAdapter
from oubliette.tools import attached_commands
from oubliette.tools.audit import note_refused_key
from oubliette.tools.git_views import ProjectViews
from oubliette.tools.home_streams import STREAMS, HomeStreamsActor

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.claims import Claims
    from oubliette.actors.shares import Shares
    from oubliette.kit import Reason, Ref
    from oubliette.records import Token
    from oubliette.runtime.containers.availability import EngineAvailability
    from oubliette.tools.attached_commands import AttachedCommands
    from oubliette.tools.services import ToolServices


class GetUrl(Message, Reply[str]):
    """Request for the URL that clients connect to."""


class FrontEnded(Message):
    """Notice that MCP requests are not answered any more."""


class FrontLoaded(Message):
    """Notice that listeners are answered from now on."""


class FrontActor(Actor):
    """Owner of the front: it serves from its start to its end. Requests bypass its mailbox.

    Args:
        front: The application.
        on_loaded: Called when it can answer listeners.
    """

    shutdown: ClassVar[float] = 5.0

    def __init__(self, front: McpApp, on_loaded: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._front = front
        self._on_loaded = on_loaded

    async def on_start(self) -> None:
        await self._front.start()
        self.pipe_to_self(self._front.loaded(), ok=lambda _: FrontLoaded(), err=_fail)
        self.pipe_to_self(self._front.ended(), ok=lambda _: FrontEnded(), err=_fail)

    async def on_exit(self, reason: Reason, error: BaseException | None) -> None:
        del reason, error
        await self._front.stop()

    @handles(GetUrl)
    def _url(self, _: GetUrl) -> str:
        return self._front.url

    @handles(FrontLoaded)
    def _loaded(self, _: FrontLoaded) -> None:
        self._on_loaded()

    @handles(FrontEnded)
    def _ended(self, _: FrontEnded) -> None:
        self.stop()


def _fail(error: BaseException) -> Message:
    """Make the actor fail with this error: without the SDK no requests can be served."""
    raise error


def front_of(
    services: ToolServices,
    store: Ref,
    presence: EngineAvailability,
    claims: Claims | None,
    shares: Shares | None,
    *,
    commands: AttachedCommands,
) -> McpApp:
    """The front, which is not bound to its port yet.

    Args:
        services: Of the tools' handlers.
        store: The actor in front of the database.
        presence: Of the engine of containers.
        claims: Limits over all nodes of a cluster; None: the server is alone.
        shares: Those that each call counts.
        commands: Those in containers that have clients.
    """

    async def verify(key: str) -> Token:
        try:
            return services.keys.verify(key, "http")
        except Unauthenticated:
            if services.nodes is not None and await services.keys.look_up(key):
                return services.keys.verify(key, "http")
            if (known := services.keys.known(key)) is not None:
                await note_refused_key(services, known, "http")
            raise

    async def ready() -> list[str]:
        state = await store.ask(GetStoreState(), timeout=2.0)
        stored = None if state.state == "running" else f"the store is {state.state}: {state.reason}"
        return [each for each in (stored, await presence.problem()) if each is not None]

    front = McpApp(
        config=services.config,
        tools=ToolAdapter(services),
        keys=KeyChecks(verify, services.keys.while_good),
        ready=ready,
        callers=services.callers,
        find=services.name_actor,
        rates=services.rates,
        claims=claims,
        shares=shares,
    )
    fetches = git_fetches.Fetches(ProjectViews(services), services.nodes)
    front.serve_git(fetches)
    front.serve_commands(commands)
    if services.nodes is not None:
        front.port_connections.nodes = services.nodes
        works = {
            git_fetches.KIND: fetches.serve,
            connections.KIND: front.port_connections.serve,
            attached_commands.KIND: commands.serve_elsewhere,
        }
        services.nodes.system.spawn(HomeStreamsActor, works, services.nodes, name=STREAMS)
    return front
