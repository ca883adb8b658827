"""Tools that open ports of containers for a browser: `port_open`, `port_close`, `port_list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.actors.container.start_stages import longest_start
from oubliette.actors.ports.messages import PORTS, ClosePort, ListPorts, OpenPort
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import Conflict, Unauthenticated, Unavailable
from oubliette.tools.auth.running_calls import REFUSED
from oubliette.tools.handlers.sessions import own_session, visible_session
from oubliette.tools.spec import CALLERS, Result, Transport, tool

if TYPE_CHECKING:
    from oubliette.actors.ports.messages import PortInfo, PortLink
    from oubliette.kit import Ref
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

AT_OWNERS: Final[frozenset[Transport]] = CALLERS | frozenset[Transport]({"control"})
"""Not for agents: only the owner decides which browser is let in."""
SLACK_SECONDS: Final = 60.0  # beyond the longest start of a container

_Session = Annotated[field_types.SessionId, Meta(description="Id of the session.")]
_Port = Annotated[
    int, Meta(ge=1, le=65535, description="Number on which a program in the container listens.")
]


class PortOpen(Params, frozen=True, kw_only=True):
    """Parameters of `port_open`."""

    session_id: _Session
    port: _Port


class PortClose(Params, frozen=True, kw_only=True):
    """Parameters of `port_close`."""

    session_id: _Session
    port: _Port


class PortList(Params, frozen=True, kw_only=True):
    """Parameters of `port_list`."""

    session_id: _Session


class PortOpened(Result, frozen=True, kw_only=True):
    """Result of `port_open`."""

    session_id: str
    port: int
    name: str
    url: Annotated[str, Meta(description="Link that lets one browser in, once.")]
    url_seconds: Annotated[float, Meta(description="Time for which the link is valid.")]
    address: Annotated[str, Meta(description="For browsers that were let in, and for API keys.")]
    closes_at: float


class PortClosed(Result, frozen=True, kw_only=True):
    """Result of `port_close`."""

    session_id: str
    port: int
    closed: Annotated[bool, Meta(description="Whether it was open.")]


class PortView(Result, frozen=True, kw_only=True):
    """An open port."""

    port: int
    name: str
    address: str
    opened_at: float
    closes_at: float
    connections: int


class PortPage(Result, frozen=True, kw_only=True):
    """Result of `port_list`."""

    ports: tuple[PortView, ...]


@tool(PortOpen, PortOpened, scope="write", transports=AT_OWNERS, runs_on="needed", enters="named")
async def port_open(services: ToolServices, context: CallContext, params: PortOpen) -> PortOpened:
    """Let a browser reach what listens on a port of a session's container, on loopback.

    For the owner of the session. Works without a network in the container too, which is started if
    it does not run. The link in url is valid once, for a minute; calling again makes another one.
    The port closes with the session or its container.
    """
    session = await own_session(services, context, params.session_id)
    if session.ended_by is not None:
        raise Conflict(
            "the session was ended, and its ports with it",
            hint="start another one: new_session=true, in Python project.spawn",
        )
    owner = _owner(services)
    _address(services, "")
    opened: PortLink = await owner.ask(
        OpenPort(
            session_id=session.id,
            project_id=session.project_id,
            principal=context.principal,
            port=params.port,
            token_id=context.token_id,
            expires_at=context.expires_at,
        ),
        timeout=longest_start(services.config.containers) + SLACK_SECONDS,
    )
    if services.keys.has_ended(context.token_id):  # meanwhile; the link was not there to end
        raise Unauthenticated(REFUSED)
    address = _address(services, opened.info.name)
    return PortOpened(
        session_id=session.id,
        port=params.port,
        name=opened.info.name,
        url=f"{address}/.oubliette/open?token={opened.token}",
        url_seconds=opened.seconds,
        address=f"{address}/",
        closes_at=opened.info.closes_at,
    )


@tool(PortClose, PortClosed, scope="write", transports=AT_OWNERS, runs_on="live")
async def port_close(services: ToolServices, context: CallContext, params: PortClose) -> PortClosed:
    """Close an open port of a session: its connections are cut, and its cookies end."""
    session = await own_session(services, context, params.session_id)
    message = ClosePort(session_id=session.id, port=params.port)
    closed = await _owner(services).ask(message)
    return PortClosed(session_id=session.id, port=params.port, closed=closed)


@tool(PortList, PortPage, scope="read", read_only=True, runs_on="live")
async def port_list(services: ToolServices, context: CallContext, params: PortList) -> PortPage:
    """List the open ports of a session; the links that let a browser in are not shown."""
    session = await visible_session(services, context, params.session_id)
    found = await _owner(services).ask(ListPorts(session_id=session.id))
    return PortPage(ports=tuple(_view(services, info) for info in found))


def _view(services: ToolServices, info: PortInfo) -> PortView:
    return PortView(
        port=info.port,
        name=info.name,
        address=f"{_address(services, info.name)}/",
        opened_at=info.opened_at,
        closes_at=info.closes_at,
        connections=info.connections,
    )


def _owner(services: ToolServices) -> Ref:
    found = services.find_actor(PORTS)
    if found is None:
        raise Conflict(
            "the part of the server that opens ports does not run", hint="try again in a moment"
        )
    return found


def _address(services: ToolServices, name: str) -> str:
    if services.port_address is None:
        raise Unavailable(
            "this server serves nothing over HTTP, so no browser reaches a port through it",
            hint="use a server that was started by oubliette serve",
        )
    return services.port_address(name)
