"""The front of a server, connected to its tools, its keys and the state of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.store.actor import GetStoreState
from oubliette.errors import Unauthenticated
from oubliette.mcp_front.app import McpApp
from oubliette.mcp_front.auth import KeyChecks
from oubliette.mcp_front.git_http import fetches as git_fetches
from oubliette.mcp_front.ports import connections
from oubliette.mcp_front.tool_adapter import ToolAdapter
from oubliette.tools.audit import note_refused_key
from oubliette.tools.git_views import ProjectViews
from oubliette.tools.home_streams import STREAMS, HomeStreamsActor

if TYPE_CHECKING:
    from oubliette.actors.claims import Claims
    from oubliette.actors.shares import Shares
    from oubliette.kit import Ref
    from oubliette.records import Token
    from oubliette.runtime.containers.availability import EngineAvailability
    from oubliette.tools.services import ToolServices


def front_of(
    services: ToolServices,
    store: Ref,
    presence: EngineAvailability,
    claims: Claims | None,
    shares: Shares | None,
) -> McpApp:
    """The front, which is not bound to its port yet.

    Args:
        services: Of the tools' handlers.
        store: The actor in front of the database.
        presence: Of the engine of containers.
        claims: Limits over all nodes of a cluster; None: the server is alone.
        shares: Those that each call counts.
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
    if services.nodes is not None:
        front.port_connections.nodes = services.nodes
        works = {git_fetches.KIND: fetches.serve, connections.KIND: front.port_connections.serve}
        services.nodes.system.spawn(HomeStreamsActor, works, services.nodes, name=STREAMS)
    return front
