"""CommandHttp, the part of the front that attaches clients to commands: `GET /exec`, a WebSocket.

The first message is the request, as JSON; the answer is `{"ok": {}}` or `{"error": …}`. Then both
sides send frames (docs/relay-protocol.md), cut into messages anywhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.actors.container.attached_command import CommandClient
from oubliette.errors import (
    DeadlineExceeded,
    InvalidParameter,
    LimitExceeded,
    OublietteError,
    RateLimited,
    Unauthenticated,
)
from oubliette.json_values import parse
from oubliette.mcp_front import challenge
from oubliette.mcp_front.auth import header
from oubliette.mcp_front.command_streams.websocket import (
    REFUSAL,
    WebSocket,
    WebSocketFailed,
    accepted,
)
from oubliette.mcp_front.transport import error_responses
from oubliette.mcp_front.transport.http_protocol import connection_of
from oubliette.mcp_front.transport.running_answers import RunningAnswers
from oubliette.tools.schema.tool_result import failure

if TYPE_CHECKING:
    from starlette.types import Scope, Send

    from oubliette.mcp_front.auth import AuthenticatedKey, Authenticator
    from oubliette.mcp_front.quotas import Quotas
    from oubliette.mcp_front.transport.taken_connection import TakenConnection
    from oubliette.tools.attached_commands import AttachedCommands
    from oubliette.tools.auth.rate_limits import RateLimits

EXEC: Final = "/exec"
REQUEST_SECONDS: Final = 10.0  # for the first message
LARGEST: Final = 1024 * 1024  # bytes of it


class CommandHttp:
    """Answers requests for commands; `answers.stop` once.

    Args:
        commands: Runs what is admitted.
        authenticator: Of keys.
        quotas: Counts commands as calls in flight.
        rates: Limits on principals' calls per second; None: none.
    """

    def __init__(
        self,
        commands: AttachedCommands,
        authenticator: Authenticator,
        quotas: Quotas,
        rates: RateLimits | None,
    ) -> None:
        self._commands = commands
        self._authenticator = authenticator
        self._quotas = quotas
        self._rates = rates
        self.answers = RunningAnswers()

    async def answer(self, scope: Scope, send: Send) -> None:
        if self.answers.stopping:
            await error_responses.refuse(send, 503, "server stopping")
            return
        await self.answers.run(self._answer(scope, send))

    async def _answer(self, scope: Scope, send: Send) -> None:
        given = header(scope["headers"], b"authorization")
        try:
            who = await self._authenticator.admit(given)
        except Unauthenticated as error:
            await challenge.refuse_key(send, error.message, given=given is not None)
            return
        connection = connection_of(scope)
        connection.admitted(who.context.principal)
        consent = accepted(scope, header(scope["headers"], b"upgrade") or connection.upgrade)
        if consent is None:
            await error_responses.refuse(
                send, 426, f"{EXEC} is a WebSocket of version 13", headers=REFUSAL
            )
            return
        try:
            if self._rates is not None:
                await self._rates.take(who.context.principal)
            place = await self._quotas.take_call(who.context.principal)
        except LimitExceeded as error:
            wait = error.retry_after if isinstance(error, RateLimited) else 1
            headers = [(b"retry-after", str(wait).encode())]
            await error_responses.refuse(send, 429, str(error), headers=headers)
            return
        try:
            await self._attach(who, consent, connection.take_over())
        finally:
            place.end()

    async def _attach(
        self, who: AuthenticatedKey, consent: bytes, connection: TakenConnection
    ) -> None:
        socket = WebSocket(connection)
        client = _SocketClient(socket)
        try:
            await connection.write(consent)
            try:
                arguments = await _request(socket)
            except OublietteError as error:
                await client.fail(failure(error).structured)
            else:
                await self._commands.serve(who.context, arguments, client)
        except ConnectionError:
            return  # the client is gone, or uses no WebSocket
        finally:
            await socket.close()


async def _request(socket: WebSocket) -> dict[str, Any]:
    """The request, which is the first message.

    Raises:
        DeadlineExceeded: it does not come.
        InvalidParameter: it is no object.
        WebSocketFailed: the client closed before it, or sends no message.
    """
    whole, final = b"", False
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            while not final:
                data, final = await socket.read()
                whole += data
                if not data:
                    raise WebSocketFailed("closed before the request")
                if len(whole) > LARGEST:
                    raise InvalidParameter(f"the request is longer than {LARGEST} bytes")
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"the request, a first message, did not come within {REQUEST_SECONDS:g} s"
        ) from error
    request = parse(whole)
    if not isinstance(request, dict):
        raise InvalidParameter("the request, the first message, is no object")
    return cast("dict[str, Any]", request)


class _SocketClient(CommandClient):
    """A client at a WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def read(self) -> bytes:
        return (await self._socket.read())[0]

    async def write(self, data: bytes) -> None:
        await self._socket.write(data)

    async def answer(self, answer: dict[str, Any]) -> None:
        await self._socket.write(msgspec.json.encode(answer), text=True)
