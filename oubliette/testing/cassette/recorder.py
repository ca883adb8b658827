"""Cassette, a server on loopback between an agent and its model that records or replays.

async with Cassette(path, mode="once", upstream="https://api.example.com/v1") as cassette:
    …            # point an agent at cassette.url
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Self

import httpx2
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from oubliette.errors import ConfigError
from oubliette.testing.cassette.matching import APIS, asked, described
from oubliette.testing.cassette.redaction import Redactor
from oubliette.testing.cassette.tape import Recording, Tape
from oubliette.testing.loopback_server import LoopbackServer

if TYPE_CHECKING:
    import re
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from starlette.requests import Request

RecordMode = Literal["none", "once", "all"]
"""`none`: replay only; `once`: record if there is no file yet; `all`: record always."""
METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
KEPT_HEADERS: Final = ("content-type", "retry-after", "x-should-retry")
"""Headers of answers that are stored; those of requests never are."""
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "connection", "accept-encoding", "transfer-encoding"}
)
_READ_SECONDS: Final = 600.0
_REMEDY: Final = "record it with --oubliette-record=once, or all of them anew with all"


class UnrecordedRequest(AssertionError):
    """The cassette has no answer to a request."""


class Cassette:
    """Proxy of a model's API that records the traffic to a file, or replays it.

    Args:
        path: The file.
        mode: See `RecordMode`.
        upstream: Base URL of the real API, such as https://api.openai.com/v1; not needed for a
            replay.
        key: API key of the real API, if the agent does not send it itself.
        secrets: Further values that must not be stored; the key is one of them.
        changing: Patterns of texts that differ from run to run, and their replacements.

    Raises:
        ConfigError: there is something to record, and no upstream.
        InvalidParameter: the file is no cassette.
    """

    def __init__(
        self,
        path: Path,
        *,
        mode: RecordMode = "none",
        upstream: str | None = None,
        key: str | None = None,
        secrets: Iterable[str] = (),
        changing: Sequence[tuple[re.Pattern[str], str]] = (),
    ) -> None:
        self.path: Final = path
        self.recording: Final = mode == "all" or (mode == "once" and not path.exists())
        """Whether requests go to the upstream."""
        if self.recording and not upstream:
            raise ConfigError(
                f"the cassette {path.name} is to be recorded, and there is no upstream",
                hint="set OUBLIETTE_UPSTREAM_URL to the base URL of the model's API",
            )
        self.tape: Final = Tape() if self.recording or not path.exists() else Tape.read(path)
        self.refused: list[str] = []
        """Descriptions of requests that were not recorded."""
        self._upstream = (upstream or "").rstrip("/")
        self._key = key
        self._redactor = Redactor([*secrets, *([key] if key else [])])
        self._changing = tuple(changing)
        self._client: httpx2.AsyncClient | None = None
        self._server = LoopbackServer("127.0.0.1", 0, "cassette")
        self.root: Final = self._server.root
        """Base URL for clients of Anthropic's API."""
        self.url: Final = f"{self.root}/v1"
        """Base URL for agents."""

    async def __aenter__(self) -> Self:
        if self.recording:
            self._client = httpx2.AsyncClient(timeout=httpx2.Timeout(30.0, read=_READ_SECONDS))
        await self._server.start(
            Starlette(routes=[Route("/v1/{rest:path}", self._serve, methods=METHODS)])
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.aclose()
        if self._client is not None:
            await self._client.aclose()
        if self.recording and self.tape.recordings:
            self.tape.write(self.path)

    def check(self) -> None:
        """Check that every request had a recording.

        Raises:
            UnrecordedRequest: one had none; describes the first one.
        """
        if self.refused:
            raise UnrecordedRequest(self.refused[0])

    async def _serve(self, request: Request) -> Response:
        body = await request.body()
        query = f"?{request.url.query}" if request.url.query else ""
        path = f"{request.url.path}{query}"
        asks = asked(request.method, path, body, self._redactor, self._changing)
        if self._client is not None:
            return await self._forward(self._client, request, path, body, asks)
        recording = self.tape.take(asks)
        if recording is None:
            return self._refuse(request.url.path, asks)
        if recording.headers.get("content-type", "").startswith("text/event-stream"):
            return StreamingResponse(
                _each(recording.pieces), recording.status, headers=recording.headers
            )
        return Response("".join(recording.pieces), recording.status, headers=recording.headers)

    def _refuse(self, path: str, asks: dict[str, Any]) -> Response:
        times = self.tape.times(asks)
        how = f"was recorded {times} times, and came once more" if times else "was not recorded"
        if not self.tape.recordings:
            how += f": there is no {self.path}" if not self.path.exists() else ": it is empty"
        message = f"the cassette {self.path.name}: {described(asks)} {how} (hint: {_REMEDY})"
        self.refused.append(message)
        api = APIS.get(path)
        error = {"error": {"message": message}} if api is None else api.error(400, message)
        return JSONResponse(error, 400, {"x-should-retry": "false"})

    async def _forward(
        self,
        client: httpx2.AsyncClient,
        request: Request,
        path: str,
        body: bytes,
        asks: dict[str, Any],
    ) -> Response:
        headers = {
            name: value for name, value in request.headers.items() if name not in _OWN_HEADERS
        }
        headers["accept-encoding"] = "identity"  # recordings are text
        if self._key is not None:
            name = "x-api-key" if "x-api-key" in headers else "authorization"
            headers[name] = self._key if name == "x-api-key" else f"Bearer {self._key}"
        outgoing = client.build_request(
            request.method,
            self._upstream + path.removeprefix("/v1"),
            headers=headers,
            content=body,
        )
        try:
            answer = await client.send(outgoing, stream=True)
        except httpx2.TransportError as error:
            message = self._redactor.redact(
                f"the upstream of the cassette does not answer: {error}"
            )
            return JSONResponse({"error": {"message": message}}, 502)
        kept = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
        return StreamingResponse(
            self._recorded(answer, asks, kept), answer.status_code, headers=kept
        )

    async def _recorded(
        self, answer: httpx2.Response, asks: dict[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[str]:
        """Pass the body on; what has arrived is recorded even if the agent has enough of it."""
        pieces: list[str] = []
        try:
            async for piece in answer.aiter_text():
                pieces.append(piece)
                yield piece
        finally:
            self.tape.add(
                Recording(
                    asks=asks,
                    status=answer.status_code,
                    headers=headers,
                    pieces=self._redactor.pieces(pieces),
                )
            )
            await answer.aclose()


async def _each(pieces: list[str]) -> AsyncIterator[str]:
    for piece in pieces:
        yield piece
