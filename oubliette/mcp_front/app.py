"""McpApp, the front's ASGI application: `/mcp`, `/git`, `/exec`, `/health` and `/ready`.

A request is checked in this order: names (Host, Origin), path, key, limits; only then does the SDK
get it. So no body is read, and no state is kept, before the request's principal is known.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import structlog

from oubliette.errors import (
    InvalidParameter,
    LimitExceeded,
    OublietteError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from oubliette.json_values import check_count
from oubliette.mcp_front import challenge
from oubliette.mcp_front.auth import Authenticator, header
from oubliette.mcp_front.calls import ToolCalls
from oubliette.mcp_front.command_streams.handler import EXEC, CommandHttp
from oubliette.mcp_front.direct_path.handler import DirectPath
from oubliette.mcp_front.events.get_stream import GetStreams
from oubliette.mcp_front.events.listen import ListenService
from oubliette.mcp_front.git_http.handler import GIT, GitHttp
from oubliette.mcp_front.host_and_origin import HostPolicy
from oubliette.mcp_front.ports.connections import PortConnections
from oubliette.mcp_front.ports.site import PortSite
from oubliette.mcp_front.protocol import SESSION_HEADER
from oubliette.mcp_front.quotas import Quotas
from oubliette.mcp_front.sdk import LOADING, Sdk
from oubliette.mcp_front.transport import cors, error_responses
from oubliette.mcp_front.transport.http_protocol import Deadlines, connection_of
from oubliette.mcp_front.transport.http_server import HttpServer
from oubliette.mcp_front.transport.request_body import is_cut, read_body, replay
from oubliette.mcp_front.transport.request_stream import SCOPE_KEY, RequestStream
from oubliette.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Receive, Scope, Send
    from uvicorn._types import ASGI3Application

    from oubliette.actors.claims import Claims
    from oubliette.actors.shares import Shares
    from oubliette.config.schema import Config
    from oubliette.kit import Ref
    from oubliette.mcp_front.auth import AuthenticatedKey, KeyChecks
    from oubliette.mcp_front.git_http.fetches import Fetches
    from oubliette.mcp_front.tool_adapter import ToolAdapter
    from oubliette.mcp_front.transport.http_protocol import GuardedProtocol, Parser
    from oubliette.tools.attached_commands import AttachedCommands
    from oubliette.tools.auth.rate_limits import RateLimits

CALLS_END: Final = 1.5  # seconds for calls in flight at the stop
ANSWERS_END: Final = 0.5  # seconds after that, for the error that the server stops
REST_ENDS: Final = 0.3  # seconds for GET streams after that
RETRY_AFTER: Final = (b"retry-after", b"1")
_LAST_EVENT_ID: Final = b"last-event-id"
_CLOSE: Final = (b"connection", b"close")
_METHODS: Final = frozenset({"GET", "POST", "DELETE"})

log = structlog.get_logger("oubliette.front")


class McpApp:
    """ASGI application between the socket and the tool table. `start`, then `stop`; once each.

    Args:
        config: The server's configuration.
        tools: The tool table.
        keys: Checks of keys.
        ready: Returns the reasons why the server takes no work.
        callers: The actor that opens CallerActors.
        find: Name → a ref that is resolved at each send.
        deadlines: Limits of connections; default: those of the configuration.
        rates: Limits on principals' calls per second; default: none.
        claims: Counts the listeners of all nodes of a cluster; default: there are no others.
        shares: Counts their calls in flight.
        direct: Whether plain calls bypass the SDK. If not, the SDK handles all: answers differ only
            in their form (a handshake call is answered as a stream).
        parser: Parser of requests; default: the fastest that this machine has.
    """

    def __init__(
        self,
        *,
        config: Config,
        tools: ToolAdapter,
        keys: KeyChecks,
        ready: Callable[[], Awaitable[list[str]]],
        callers: Ref,
        find: Callable[[str], Ref],
        deadlines: Deadlines | None = None,
        rates: RateLimits | None = None,
        claims: Claims | None = None,
        shares: Shares | None = None,
        direct: bool = True,
        parser: Parser | None = None,
    ) -> None:
        self._config = config
        self._rates = rates
        self._ready = ready
        self._names = HostPolicy(config.server)
        self.quotas = Quotas(config.callers, claims, shares)
        self._authenticator = Authenticator(keys)
        self.port_connections = PortConnections(find)
        """Connections to open ports, of this node's browsers and of those of other nodes."""
        self._ports = PortSite(config.ports.base_url, self.port_connections, self._authenticator)
        self.listening = ListenService(callers, find, self.quotas, config.callers)
        """Implementation of `caller_listen`, for the tool table (`ToolServices.listen`)."""
        self._streams = GetStreams(self.listening, self.quotas)
        most = config.server.max_body_bytes
        calls = self._asked = ToolCalls(tools, self._streams.before_call)
        self._sdk = Sdk(tools, calls, config, self._session_ended)
        self._direct = DirectPath(calls, self._sdk, most) if direct else None
        self._http = HttpServer(
            cast("ASGI3Application", self),
            config.server.host,
            config.server.port,
            deadlines
            or Deadlines(
                head=config.server.header_timeout_seconds,
                stall=config.callers.send_timeout_seconds,
            ),
            parser,
        )
        self._git: GitHttp | None = None
        self._commands: CommandHttp | None = None
        self._stopping = False
        self._calls: set[asyncio.Future[None]] = set()

    def serve_git(self, fetches: Fetches) -> None:
        """Serve the repositories that git's clients may fetch from; before the start."""
        self._git = GitHttp(fetches, self._authenticator, self.quotas, self._rates)

    def serve_commands(self, commands: AttachedCommands) -> None:
        """Attach clients to commands in containers; before the start."""
        self._commands = CommandHttp(commands, self._authenticator, self.quotas, self._rates)

    # ------------------------------------------------------------ lifecycle
    def bind(self) -> str:
        """Bind the port; return the URL that clients use.

        Raises:
            ConfigError: the port is in use.
        """
        self._http.bind()
        return self._http.url

    @property
    def url(self) -> str:
        return self._http.url

    def port_address(self, name: str) -> str:
        """Return the address of an open port for browsers; known after `bind`."""
        return self._ports.hosts.address(name, self._http.address[1])

    @property
    def connections(self) -> frozenset[GuardedProtocol]:
        return self._http.connections

    async def start(self) -> str:
        """Accept connections; return the URL that clients use. The MCP SDK is loaded afterwards."""
        await self._http.start()
        self._sdk.start()
        log.info("listening", url=self.url)
        return self.url

    def key_ended(self, token_id: str) -> None:
        """End the MCP sessions of a key that is not valid any more, and what it let in to ports."""
        self._sdk.key_ended(token_id)
        self._ports.key_ended(token_id)

    async def loaded(self) -> None:
        await self._sdk.wait_loaded()

    async def ended(self) -> None:
        """Wait for the end of the part that answers MCP requests.

        Raises:
            Exception: the error that ended it.
        """
        await self._sdk.ended()

    async def stop(self) -> None:
        """End listeners, wait for calls in flight, cancel the rest; within about two seconds."""
        self._stopping = True
        self.listening.stop()
        self._sdk.close()
        for long in (self._git, self._commands):
            if long is not None:
                await long.answers.stop()
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=CALLS_END)
        self._asked.give_up()
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=ANSWERS_END)
        if self._direct is not None:
            self._direct.stop()
        await self._streams.stop()
        await self._sdk.stop(CALLS_END)
        await self._http.stop(REST_ENDS)
        await self._sdk.cut()

    # ------------------------------------------------------------ requests
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await connection_of(scope).in_rate()
        headers = scope["headers"]
        host = header(headers, b"host")
        if not self._names.knows_host(host):
            if (name := self._ports.hosts.name_of(host)) is not None:
                await self._ports(name, scope, receive, send)
                return
            await error_responses.refuse(
                send, 421, "that Host is not a name of this server; server.allowed_hosts adds names"
            )
            return
        origin = header(headers, b"origin")
        if not self._names.trusts_origin(origin):
            await error_responses.refuse(
                send, 403, "pages of that Origin are not trusted;"
                " server.allowed_origins adds some"
            )  # fmt: skip
            return
        if origin is not None:
            send = cors.open_to(origin, send)
            if scope["method"] == "OPTIONS":
                await cors.answer_preflight(send)
                return
        match scope["path"]:
            case "/mcp" | "/mcp/":
                await self._mcp(scope, receive, send)
            case path if self._git is not None and path.startswith(GIT):
                await self._git.answer(scope, receive, send)
            case path if self._commands is not None and path == EXEC:
                await self._commands.answer(scope, send)
            case path:
                await self._answer_anybody(path, send)

    async def _answer_anybody(self, path: str, send: Send) -> None:
        """Answer a request for which no key is needed."""
        match path:
            case "/health":
                await error_responses.answer_json(send, 200, {"ok": True, "version": __version__})
            case "/ready":
                await self._readiness(send)
            case _ if challenge.is_oauth(path):
                await challenge.refuse_oauth(send, path)
            case _:
                await error_responses.refuse(send, 404, "not found; MCP is served at /mcp")

    async def _readiness(self, send: Send) -> None:
        reasons = ["server stopping"] if self._stopping else await self._reasons()
        status = 503 if reasons else 200
        await error_responses.answer_json(send, status, {"ready": not reasons, "reasons": reasons})

    async def _reasons(self) -> list[str]:
        try:
            reasons = await self._ready()
            return reasons if self._sdk.loaded else [*reasons, LOADING]
        except OublietteError as error:
            return [error.message]
        except Exception:
            log.exception("readiness unknown")
            return ["a part of the server does not answer"]

    async def _mcp(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method not in _METHODS:
            await error_responses.refuse(
                send,
                405,
                f"{method} is not served here",
                headers=[(b"allow", b"GET, POST, DELETE")],
            )
            return
        given = header(scope["headers"], b"authorization")
        try:
            who = await self._authenticator.admit(given)
        except Unauthenticated as error:
            await challenge.refuse_key(send, error.message, given=given is not None)
            return
        connection_of(scope).admitted(who.context.principal)
        if self._stopping:
            await error_responses.refuse(
                send, 503, "server stopping", headers=[_CLOSE, RETRY_AFTER]
            )
            return
        length = header(scope["headers"], b"content-length")
        most = self._config.server.max_body_bytes
        if length is not None and length.isdigit() and int(length[:19]) > most:
            await error_responses.refuse(
                send, 413, f"the request body may have {most} bytes at most"
            )
            return
        if method == "GET":
            await self._get(who, scope, receive, send)
        else:
            await self._post(who, scope, receive, send)

    async def _post(
        self, who: AuthenticatedKey, scope: Scope, receive: Receive, send: Send
    ) -> None:
        done = asyncio.get_running_loop().create_future()
        self._calls.add(done)
        place = None
        try:
            if self._rates is not None:
                await self._rates.take(who.context.principal)
            place = await self.quotas.take_call(who.context.principal)
            exchange = RequestStream(who, scope, send, place)
            if scope["method"] == "DELETE":
                await self._serve(scope, receive, exchange)
            else:
                await self._answer(scope, receive, exchange)
        except LimitExceeded as error:
            if place is not None:
                raise
            await self._refuse_for_now(send, error)
        finally:
            self._calls.discard(done)
            done.set_result(None)
            if place is not None:
                place.end()

    async def _answer(self, scope: Scope, receive: Receive, exchange: RequestStream) -> None:
        """Answer a POST: directly if it is a plain call, else through the SDK."""
        if self._direct is None:
            await self._serve(scope, receive, exchange)
            return
        left = await self._direct.answer(scope, receive, exchange)
        if left is not None:
            await self._serve(scope, left.receive, exchange)
            if left.cancels is not None and exchange.status == 202:
                self._direct.cancel(left.cancels)

    def _session_ended(self, session_id: str) -> None:
        self._streams.ended(session_id)
        if self._direct is not None:
            self._direct.session_over(session_id)

    async def _refuse_for_now(self, send: Send, error: LimitExceeded) -> None:
        """Refuse only this request: the client's session continues (RFC 6585, section 4)."""
        seconds = error.retry_after if isinstance(error, RateLimited) else 1
        headers = [(b"retry-after", str(seconds).encode())]
        await error_responses.refuse(send, 429, str(error), headers=headers)

    async def _get(self, who: AuthenticatedKey, scope: Scope, receive: Receive, send: Send) -> None:
        principal = who.context.principal
        session_id = header(scope["headers"], SESSION_HEADER)
        last_event_id = header(scope["headers"], _LAST_EVENT_ID)
        # The ids are ours, and not the SDK's: without a store of them it would answer nothing.
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != _LAST_EVENT_ID]
        exchange = RequestStream(who, scope, send)
        loop = asyncio.get_running_loop()
        binder, took_over, counted = None, False, False
        keeper = loop.create_task(_cut_with_key(exchange))
        try:
            if self._rates is not None:
                await self._rates.take(principal)
            if session_id is not None and _takes_events(header(scope["headers"], b"accept")):
                took_over = await self._streams.take_over(exchange, session_id.decode("latin-1"))
            await self.quotas.take_stream(principal)
            counted = True
            if session_id is not None:
                exchange.expect_open()
                opened = self._streams.opened(
                    exchange, session_id.decode("latin-1"), last_event_id, took_over=took_over
                )
                binder = loop.create_task(opened)
            await self._serve(scope, receive, exchange)
        except LimitExceeded as error:
            if counted:
                raise
            await self._refuse_for_now(send, error)
        finally:
            exchange.end()
            keeper.cancel()
            if binder is not None:
                binder.cancel()
            if counted:
                self.quotas.end_stream(principal)

    async def _serve(self, scope: Scope, receive: Receive, exchange: RequestStream) -> None:
        """Pass the request to the SDK; the client sees no details of its failures."""
        scope[SCOPE_KEY] = exchange
        try:
            if scope["method"] == "POST":
                # The SDK takes a client that goes away in the middle for a failure of its own.
                read: list[Message] = []
                body = await read_body(receive, read, self._config.server.max_body_bytes)
                if is_cut(read):
                    log.debug("client gone", during="body")
                    return
                check_count(body or b"")
                receive = replay(read, receive)
            await self._sdk(exchange.who.context.principal, scope, receive, exchange.send)
        except InvalidParameter as error:
            await error_responses.refuse(exchange.send, 413, error.message, code=error.jsonrpc_code)
        except Unavailable as error:
            await error_responses.refuse(
                exchange.send, 503, error.message, headers=[_CLOSE, RETRY_AFTER]
            )
        except Exception:
            log.exception("request failed")
            if not exchange.status:
                await error_responses.refuse(
                    exchange.send,
                    500,
                    "internal error; see the server's log",
                    code=error_responses.INTERNAL_ERROR,
                )
        finally:
            exchange.end()


async def _cut_with_key(exchange: RequestStream) -> None:
    """Cut a stream when its key ends; the SDK takes that for a client that has gone."""
    try:
        async with exchange.who.while_good():
            await asyncio.get_running_loop().create_future()
    except Unauthenticated:
        exchange.cut()


def _takes_events(accept: bytes | None) -> bool:
    kinds = {part.partition(b";")[0].strip().lower() for part in (accept or b"").split(b",")}
    return bool(kinds & {b"*/*", b"text/*", b"text/event-stream"})
