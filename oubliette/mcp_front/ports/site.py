"""PortSite: all requests whose Host is the name of an open port. None of them reaches MCP.

Such a request needs a cookie that a link of `port_open` has set, or an API key of the port's owner.
Then it goes to the container. Only paths below `/.oubliette/` belong to this server.
"""

from __future__ import annotations

import asyncio
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs

import structlog

from oubliette.actors.ports.messages import KeyEnded, OpenConnection, RedeemToken
from oubliette.errors import (
    Forbidden,
    LimitExceeded,
    NotFound,
    OublietteError,
    Unauthenticated,
)
from oubliette.ids import new_uuid
from oubliette.kit import ActorDead
from oubliette.mcp_front.auth import header
from oubliette.mcp_front.ports.connections import PortHosts
from oubliette.mcp_front.ports.exchange import BadAnswer, BadHead, NoAnswer, PortExchange
from oubliette.mcp_front.ports.headers import COOKIE, cookies_of, is_foreign, to_container
from oubliette.mcp_front.transport.http_protocol import connection_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from oubliette.actors.ports.messages import GuestStream
    from oubliette.mcp_front.auth import AuthenticatedKey, Authenticator
    from oubliette.mcp_front.ports.connections import PortConnections
    from oubliette.mcp_front.ports.headers import Headers
    from oubliette.mcp_front.transport.taken_connection import TakenConnection

OPEN_PATH: Final = "/.oubliette/open"
OWN_PATHS: Final = "/.oubliette/"
_KEY: Final = b"bearer oub_"
_NOT_LET_IN: Final = (
    "This port is open for its owner only. port_open, or oubliette port, makes a link that lets one"
    " browser in."
)
_USED_UP: Final = (
    "This link was used already, or is older than a minute. port_open, or oubliette port, makes"
    " another one."
)

log = structlog.get_logger("oubliette.front")


class _Visitor(NamedTuple):
    """The cookies and the key that a request presents."""

    cookies: tuple[str, ...]
    key: AuthenticatedKey | None


class PortSite:
    """ASGI application of open ports."""

    def __init__(
        self, base_url: str, connections: PortConnections, authenticator: Authenticator
    ) -> None:
        self.hosts = PortHosts(base_url)
        self.connections = connections
        self._authenticator = authenticator

    async def __call__(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to the port of this name."""
        try:
            if scope["path"] == OPEN_PATH:
                await self._let_in(name, scope, send)
            elif scope["path"].startswith(OWN_PATHS):
                await show_page(send, 404, "There is nothing at this path.")
            else:
                await self._forward(name, scope, receive, send)
        except (NotFound, ActorDead) as error:
            await show_page(send, 421, _sentence(error))
        except OublietteError as error:
            await show_page(send, 502, _sentence(error))

    def key_ended(self, token_id: str) -> None:
        """End what was let in by a key that is not valid any more."""
        self.connections.here.tell(KeyEnded(token_id=token_id))

    async def _let_in(self, name: str, scope: Scope, send: Send) -> None:
        """Exchange the token of a link for a cookie of this host name."""
        if scope["method"] != "GET":
            await show_page(send, 405, "Links are opened by GET.", [(b"allow", b"GET")])
            return
        if header(scope["headers"], b"sec-purpose") is not None:  # a guess of the browser's
            await show_page(send, 503, "This link is valid once, and is not prefetched.")
            return
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        owner = await self.connections.owner(name)
        made = await owner.ask(RedeemToken(name=name, token=token))
        if made is None:
            await show_page(send, 403, _USED_UP)
            return
        cookie = f"{COOKIE.decode()}={made.value}; Path=/; HttpOnly; SameSite=Lax"
        cookie += f"; Max-Age={int(made.seconds)}" + ("; Secure" if self.hosts.secure else "")
        where = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
        await show_page(send, 303, "The port is open for this browser.", where)

    async def _visitor(self, scope: Scope) -> _Visitor:
        """Return what the request presents.

        Raises:
            Unauthenticated: it has an API key of this server that is not valid.
        """
        cookies = cookies_of(scope["headers"])
        given = header(scope["headers"], b"authorization")
        # Programs in containers have keys of their own, which look otherwise
        if given is None or not given.lower().startswith(_KEY):
            return _Visitor(cookies, None)
        return _Visitor(cookies, await self._authenticator.admit(given))

    async def _forward(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            visitor = await self._visitor(scope)
            if visitor.key is None and is_foreign(scope["method"], scope["headers"]):
                await show_page(send, 403, "A page of another origin may not use this port.")
                return
            connection = connection_of(scope)
            wanted = _wanted(name, visitor, connection.table.share)
            async with self.connections.opened(wanted) as stream:
                connection.admitted(stream.principal)  # its cookie is as good as a key
                await self._exchange(stream, visitor, scope, receive, send)
        except Unauthenticated:
            await show_page(send, 401, _NOT_LET_IN, [(b"www-authenticate", b"Bearer")])
        except Forbidden as error:
            await show_page(send, 403, _sentence(error))
        except LimitExceeded as error:
            await show_page(send, 503, _sentence(error), [(b"retry-after", b"1")])

    async def _exchange(
        self, stream: GuestStream, visitor: _Visitor, scope: Scope, receive: Receive, send: Send
    ) -> None:
        connection = connection_of(scope)
        connection.unhurried()
        headers = to_container(
            scope["headers"],
            port=stream.port,
            client=(scope.get("client") or ("unknown",))[0],
            scheme="https" if self.hosts.secure else "http",
            own_key=visitor.key is not None,
        )
        exchange = PortExchange(stream, scope, receive, send)
        protocol = header(scope["headers"], b"upgrade") or connection.upgrade
        try:
            if protocol is None or protocol.lower() != b"websocket":
                await exchange.run(headers)
                return
            consent = await exchange.upgrade(headers, protocol)
            if consent is not None:
                await carry(connection.take_over(), stream, b"".join(consent))
        except BadHead as error:
            await show_page(send, 400, _sentence(error))
        except (BadAnswer, ConnectionError) as error:
            log.info("bad answer of a port", port=stream.port, reason=str(error))
            if isinstance(error, BadAnswer) and error.begun:
                connection.transport.abort()  # so that the browser does not take it for whole
                await receive()
                return
            late = isinstance(error, NoAnswer)
            how = "in time" if late else "in HTTP"
            said = f"What listens on port {stream.port} in the container does not answer {how}."
            await show_page(send, 504 if late else 502, said)


def _wanted(name: str, visitor: _Visitor, share: int) -> OpenConnection:
    """The request for a connection.

    Raises:
        Forbidden: the key that came with the request may only read.
    """
    context = None if visitor.key is None else visitor.key.context
    if context is not None and not context.scope.covers("write", unbound=False):
        raise Forbidden("this key may only read", hint="use one with the scope write")
    return OpenConnection(
        name=name,
        connection_id=new_uuid(),
        share=share,
        cookies=visitor.cookies,
        principal=None if context is None else context.principal,
        project_id=None if context is None else context.scope.project,
        token_id="" if context is None else context.token_id,
        expires_at=None if context is None else context.expires_at,
    )


def _sentence(error: Exception) -> str:
    """The text of an error as a sentence, with its remedy."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


TITLES: Final = {
    303: "Open",
    400: "Bad request",
    401: "Not let in",
    403: "Refused",
    404: "Not found",
    405: "Method not allowed",
    421: "Not here",
    502: "Nothing answers",
    503: "Not now",
    504: "Nothing answers in time",
}


async def show_page(send: Send, status: int, sentence: str, headers: Headers | None = None) -> None:
    """Answer with a page that states the reason."""
    title = TITLES[status]
    body = (
        f"<!doctype html><meta charset=utf-8><title>{status} {title}</title>"
        f"<h1>{title}</h1><p>{escape(sentence)}</p>\n"
    ).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"text/html; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
                (b"content-security-policy", b"default-src 'none'"),
                (b"cache-control", b"no-store"),
                (b"referrer-policy", b"no-referrer"),
                *(headers or []),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


PIECE: Final = 64 * 1024  # bytes


async def carry(browser: TakenConnection, stream: GuestStream, first: bytes) -> None:
    """Carry bytes both ways until either side ends; what it sent before is still delivered."""

    async def upload() -> None:
        while data := await browser.read(PIECE):
            stream.writer.write(data)
            await stream.writer.drain()

    async def download() -> None:
        await browser.write(first)
        while data := await stream.reader.read(PIECE):
            await browser.write(data)

    both = {asyncio.create_task(upload()), asyncio.create_task(download())}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        browser.close()
