"""GitHttp, the part of the front that git's clients talk to."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.errors import (
    Forbidden,
    LimitExceeded,
    NotFound,
    OublietteError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from oubliette.kit import ActorDead
from oubliette.mcp_front.auth import header
from oubliette.mcp_front.git_http.fetches import Fetch
from oubliette.mcp_front.git_http.git_request import GIT, GitRefused, as_bearer, parse
from oubliette.mcp_front.git_http.upload_pack import ClientGone
from oubliette.mcp_front.transport.http_protocol import connection_of
from oubliette.mcp_front.transport.running_answers import RunningAnswers

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from oubliette.mcp_front.auth import AuthenticatedKey, Authenticator
    from oubliette.mcp_front.git_http.fetches import Fetches
    from oubliette.mcp_front.quotas import Quotas
    from oubliette.tools.auth.rate_limits import RateLimits

__all__ = ["GIT", "GitHttp"]

_CHALLENGE: Final = (b"www-authenticate", b'Basic realm="oubliette: any user name, and a key"')
_STATUS: Final[tuple[tuple[type[OublietteError], int], ...]] = (
    (Unauthenticated, 401),
    (NotFound, 404),
    (Forbidden, 403),
    (LimitExceeded, 429),
    (Unavailable, 503),
    (ActorDead, 503),
)

log = structlog.get_logger("oubliette.front")


class GitHttp:
    """Answers requests below `/git/`; `answers.stop` once.

    Args:
        fetches: Serves what is admitted.
        authenticator: Of keys.
        quotas: Counts requests as calls in flight.
        rates: Limits on principals' calls per second; None: none.
    """

    def __init__(
        self,
        fetches: Fetches,
        authenticator: Authenticator,
        quotas: Quotas,
        rates: RateLimits | None,
    ) -> None:
        self._fetches = fetches
        self._authenticator = authenticator
        self._quotas = quotas
        self._rates = rates
        self.answers = RunningAnswers()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.answers.stopping:
            await _answer_text(send, 503, "server stopping")
            return
        await self.answers.run(self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header(scope["headers"], b"authorization")
        try:
            who = await self._authenticator.admit(as_bearer(given))
        except Unauthenticated:
            why = "a key is needed, as the password; any user name will do"
            if given is not None:
                why = "invalid or expired key; `oubliette token create` makes one"
            await _answer_text(send, 401, why, _CHALLENGE)
            return
        connection_of(scope).admitted(who.context.principal)
        response = _GitResponse(scope, send)
        try:
            async with who.while_good():
                await self._serve(who, scope, receive, response)
        except ClientGone:
            pass  # an answer has no reader any more
        except OublietteError as error:
            await response.fail(error)
        except asyncio.CancelledError:
            response.cut()
            raise
        except Exception:
            log.exception("request failed")
            await response.fail(OublietteError("internal error; see the server's log"))

    async def _serve(
        self, who: AuthenticatedKey, scope: Scope, receive: Receive, response: _GitResponse
    ) -> None:
        principal = who.context.principal
        if self._rates is not None:
            await self._rates.take(principal)  # what is refused by it is not in the audit log
        began, outcome, request = time.monotonic(), "cancelled", None
        try:
            request = parse(scope)
            place = await self._quotas.take_call(principal)
            try:
                fetch = Fetch(request, receive, response.send)
                await self._fetches.fetch(who.context, fetch)
            finally:
                place.end()
            outcome = "ok"
        except OublietteError as error:
            outcome = error.code
            raise
        finally:
            project_id = None if request is None else request.project_id
            seconds = time.monotonic() - began
            await self._fetches.views.note(who.context, project_id, outcome, seconds)


class _GitResponse:
    """A response, of which it is known whether it has begun."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._connection = connection_of(scope)
        self._send = send
        self._begun = False

    async def send(self, message: Message) -> None:
        self._begun = True
        await self._send(message)

    async def fail(self, error: OublietteError) -> None:
        """Answer with an error; cut the connection if the answer has begun."""
        if self._begun:
            log.warning("an answer to git was cut", reason=str(error))
            self.cut()
            return
        more: list[tuple[bytes, bytes]] = []
        if isinstance(error, GitRefused):
            status = error.status
        else:
            status = next((found for kind, found in _STATUS if isinstance(error, kind)), 500)
        if status == 429:
            wait = error.retry_after if isinstance(error, RateLimited) else 1
            more.append((b"retry-after", str(wait).encode()))
        await _answer_text(self.send, status, str(error), *more)

    def cut(self) -> None:
        """End the connection at once: the client must not take what it has for a whole answer."""
        self._connection.transport.abort()


async def _answer_text(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    """Answer with a sentence, which git shows to its user."""
    body = f"{text}\n".encode()
    head = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
