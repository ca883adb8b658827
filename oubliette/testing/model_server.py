"""Scripted model server on loopback: real agents, no model (docs/testing.md).

    async with ModelServer() as model:
        …            # point an agent at model.url, and prompt it with a script
        model.requests

or `python -m oubliette.testing.model_server --port 0`, which prints its URL as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from oubliette.testing.loopback_server import LoopbackServer
from oubliette.testing.model_apis.base import CHARS_PER_TOKEN, Api, CutError
from oubliette.testing.model_apis.chat_completions import ChatCompletions
from oubliette.testing.model_apis.messages import Messages
from oubliette.testing.model_apis.request_text import instructions
from oubliette.testing.model_apis.responses import Responses
from oubliette.testing.model_script import ModelRequest, ModelToolCall, Refuse, Say, answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response


APIS: Final[tuple[type[Api], ...]] = (ChatCompletions, Responses, Messages)
KEPT: Final = 1000  # requests


class Received(msgspec.Struct, frozen=True):
    """One received request."""

    path: str
    asked: ModelRequest
    key: str
    """Credential of the request."""
    instructions: str = ""
    """Text besides the conversation: system prompt, rules of repositories."""


class ModelServer:
    """Scripted model server; listens while its block runs.

    Args:
        host: address to bind.
        port: 0 picks a free one.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = LoopbackServer(host, port, "model server")
        self.root: Final = self._server.root
        """Base URL for clients of Anthropic's API."""
        self.url: Final = f"{self.root}/v1"
        """Base URL for agents."""
        self.requests: deque[Received] = deque(maxlen=KEPT)
        """The latest requests, oldest first."""
        self._count = 0
        self._asked: OrderedDict[ModelRequest, int] = OrderedDict()

    async def __aenter__(self) -> Self:
        routes = [Route(api.path, self._endpoint(api), methods=["POST"]) for api in APIS]
        routes.append(Route("/v1/models", self._models))
        routes.append(Route(f"{Messages.path}/count_tokens", self._count_tokens, methods=["POST"]))
        await self._server.start(Starlette(routes=routes))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.aclose()

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _count_tokens(self, request: Request) -> Response:
        body: Any = await request.json()
        return JSONResponse({"input_tokens": len(json.dumps(body)) // CHARS_PER_TOKEN})

    def _endpoint(self, api: type[Api]) -> Any:
        async def serve(request: Request) -> Response:
            try:
                body: Any = await request.json()
            except ValueError:
                return JSONResponse(api.error(400, "not JSON"), 400)
            if not isinstance(body, dict):
                return JSONResponse(api.error(400, "not an object"), 400)
            asked = api.read(cast("dict[str, Any]", body))
            self._count += 1
            key = request.headers.get("x-api-key") or request.headers.get("authorization", "")
            instructed = sys.intern(
                instructions(cast("dict[str, Any]", body))
            )  # usually the same text
            self.requests.append(Received(api.path, asked, key.removeprefix("Bearer "), instructed))
            return await self._answer(api, asked)

        return serve

    def _again(self, asked: ModelRequest) -> int:
        """Return the number of identical earlier requests."""
        times = self._asked.pop(asked, 0)
        self._asked[asked] = times + 1
        if len(self._asked) > KEPT:
            self._asked.popitem(last=False)
        return times

    async def _answer(self, kind: type[Api], asked: ModelRequest) -> Response:
        try:
            steps = answer(asked, self._again(asked))
        except ValueError as error:
            return JSONResponse(kind.error(400, f"the script: {error}"), 400)
        api = kind(asked, self._count, steps)
        if asked.stream and not isinstance(steps[0], Refuse):
            return StreamingResponse(api.stream(), media_type="text/event-stream")
        try:
            async for _ in api.stream():  # takes as long as a stream would
                pass
        except CutError as error:
            return StreamingResponse(_broken(error), headers={"content-length": "1000"})
        refusal = next((step for step in steps if isinstance(step, Refuse)), None)
        if refusal is not None:
            body = api.error(refusal.status, refusal.message)
            # Both vendors' clients obey this; agents of others use the status and the type.
            headers = {"x-should-retry": str(refusal.retryable).lower()}
            return JSONResponse(body, refusal.status, headers)
        text = "".join("".join(step.pieces) for step in steps if isinstance(step, Say))
        return JSONResponse(
            api.whole(text, [step for step in steps if isinstance(step, ModelToolCall)])
        )


async def _broken(error: Exception) -> AsyncIterator[bytes]:
    """Break the connection in mid-answer."""
    yield b"{"
    raise error


async def _main(host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ModelServer(host, port) as server:
        sys.stdout.write(json.dumps({"event": "ready", "url": server.url}) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(_main(given.host, given.port))
