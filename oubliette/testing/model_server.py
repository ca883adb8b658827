"""A scripted model server on loopback: real agents, no model (docs/testing.md).

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
import socket
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from oubliette.testing.model_script import Asked, Call, Refuse, Say, answer
from oubliette.testing.model_wire import APIS, Api

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


KEPT: Final = 1000  # requests
END_SECONDS: Final = 5.0


class Received(msgspec.Struct, frozen=True):
    """One request that came."""

    path: str
    asked: Asked
    key: str
    """The credential that it came with."""


class ModelServer:
    """The server; listens while its block runs.

    Args:
        host: address to bind.
        port: 0 picks a free one.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = socket.create_server((host, port))
        self.url: Final = f"http://{host}:{self._socket.getsockname()[1]}/v1"
        """What agents call their base URL (Anthropic's clients want it without `/v1`)."""
        self.requests: deque[Received] = deque(maxlen=KEPT)
        """The latest requests, oldest first."""
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._server: uvicorn.Server | None = None

    async def __aenter__(self) -> Self:
        routes = [Route(api.path, self._endpoint(api), methods=["POST"]) for api in APIS]
        routes.append(Route("/v1/models", self._models))
        config = uvicorn.Config(
            Starlette(routes=routes),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = _Quiet(config)
        serving = self._server.serve(sockets=[self._socket])
        self._task = asyncio.create_task(serving, name="model server")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._task is not None
        self._server.should_exit = True
        self._server.force_exit = True
        await asyncio.wait([self._task], timeout=END_SECONDS)
        self._socket.close()

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

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
            self.requests.append(Received(api.path, asked, key.removeprefix("Bearer ")))
            return await self._answer(api(asked, self._count), asked)

        return serve

    async def _answer(self, api: Api, asked: Asked) -> Response:
        try:
            steps = answer(asked)
        except ValueError as error:
            return JSONResponse(api.error(400, f"the script: {error}"), 400)
        if isinstance(steps[0], Refuse):
            return JSONResponse(api.error(steps[0].status, steps[0].message), steps[0].status)
        if asked.stream:
            return StreamingResponse(api.stream(steps), media_type="text/event-stream")
        async for _ in api.stream(steps):
            pass
        text = "".join("".join(step.pieces) for step in steps if isinstance(step, Say))
        return JSONResponse(api.whole(text, [step for step in steps if isinstance(step, Call)]))


class _Quiet(uvicorn.Server):
    """Leaves the process's signals alone."""

    def capture_signals(self) -> Any:
        """Do nothing."""
        import contextlib

        return contextlib.nullcontext()


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
