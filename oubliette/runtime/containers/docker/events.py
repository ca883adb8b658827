"""Stream of the engine's events for all containers, so that waiting needs no polling.

An event is only a hint to inspect the container again, so a duplicate, late or outdated one does no
harm. After each reconnection every waiter inspects again.

The SDK would need a thread for this, which cannot be ended before the engine answers (podman does
so with its first event). So this one request is written here: HTTP/1.0 over a connection of its
own, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oubliette.runtime.containers.docker.client import Engine

_SLACK: Final = 5  # seconds that the engine's clock may lag behind ours
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 2.0
_LINE_BYTES: Final = 1 << 20  # an event carries all labels of its container
_ENDINGS: Final = frozenset({"die", "died", "destroy", "remove"})

log = structlog.get_logger(__name__)


class EngineEvents:
    """Owner of the task that reads the stream; started by the first waiter.

    Args:
        engine: the engine; podman's filters have gaps, so all its container events are read.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Start reading, unless it runs already. Exits from now on are noticed."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(time.time()), name="engine events")

    def hint(self, engine_id: str) -> asyncio.Future[None]:
        """Return a future that is set at the next event of that container; `drop` it afterwards."""
        self.listen()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(engine_id, set()).add(future)
        return future

    def drop(self, engine_id: str, future: asyncio.Future[None]) -> None:
        future.cancel()
        others = self._waiting.get(engine_id)
        if others is not None:
            others.discard(future)
            if not others:
                del self._waiting[engine_id]

    def _wake(self, engine_id: str | None) -> None:
        wanted = list(self._waiting) if engine_id is None else [engine_id]
        for one in wanted:
            for future in self._waiting.get(one, ()):
                if not future.done():
                    future.set_result(None)

    async def _run(self, began: float) -> None:
        """Read until cancelled; if the stream breaks, restart from before the break."""
        retry = _FIRST_RETRY
        since = began
        while True:
            try:
                opened = time.time()
                async with self._stream(since) as reader:
                    self._wake(None)
                    retry = _FIRST_RETRY
                    await self._read(reader)
                since = opened
            except (OSError, ValueError, OublietteError) as error:
                log.debug("engine events", reason=str(error))
            await asyncio.sleep(retry)
            retry = min(retry * 2, _LAST_RETRY)

    @contextlib.asynccontextmanager
    async def _stream(self, since: float) -> AsyncGenerator[asyncio.StreamReader]:
        filters: dict[str, list[str]] = {"type": ["container"]}
        if self._engine.flavour == "docker":
            filters["event"] = ["die", "destroy"]
        query = urllib.parse.urlencode(
            {"since": int(since) - _SLACK, "filters": json.dumps(filters)}
        )
        version = await self._engine.version()
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        transport = await self._engine.open(lambda: asyncio.StreamReaderProtocol(reader))
        try:
            request = f"GET /{version}/events?{query} HTTP/1.0\r\nHost: engine\r\n\r\n"
            transport.write(request.encode())
            yield reader
        finally:
            transport.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        status = await reader.readline()
        if b" 200 " not in status:
            raise ValueError(f"the engine answered {status[:100]!r}")
        while (await reader.readline()).strip():
            pass  # the head
        while line := await reader.readline():
            with contextlib.suppress(json.JSONDecodeError):
                self._heard(json.loads(line))

    def _heard(self, event: Any) -> None:
        if event.get("Action") in _ENDINGS or event.get("status") in _ENDINGS:
            actor: dict[str, Any] = event.get("Actor") or {}
            self._wake(str(actor.get("ID") or event.get("id") or ""))

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
