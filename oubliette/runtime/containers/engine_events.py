"""One stream of the engine's events for all containers: who watches is woken, nobody polls.

An event is only a hint to look again, so one that comes twice, late or for an old start of the
same container does no harm. After each reconnection everybody looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Callable

_SLACK: Final = 5  # seconds that the engine's clock may be behind ours
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 2.0
_JOIN_SECONDS: Final = 5.0
_ENDINGS: Final = frozenset({"die", "died", "destroy", "remove", "removed", "stop"})


class EngineEvents:
    """Owns the thread that reads the stream; started by the first who waits."""

    def __init__(self, connect: Callable[[], Any], label: str) -> None:
        self._connect = connect
        self._label = label
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._stream: Any = None

    def listen(self) -> None:
        """Start the thread, if there is none. What ends from now on is heard."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._run, args=(time.time(),), name="oubliette-engine-events", daemon=True
            )
            self._thread.start()

    def hint(self, engine_id: str) -> asyncio.Future[None]:
        """A future that is set at the next event of that container; `drop` it afterwards."""
        self.listen()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(engine_id, set()).add(future)
        return future

    def drop(self, engine_id: str, future: asyncio.Future[None]) -> None:
        """Nobody waits for it any more."""
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

    # ------------------------------------------------------------------ the thread

    def _run(self, began: float) -> None:
        retry = _FIRST_RETRY
        since = int(began) - _SLACK
        while not self._over.is_set():
            try:
                api = self._connect()
                try:
                    stream = api.events(
                        since=since,
                        decode=True,
                        filters={"type": ["container"], "label": [self._label]},
                    )
                    with self._lock:
                        self._stream = stream
                    since = int(time.time()) - _SLACK
                    self._tell(None)
                    retry = _FIRST_RETRY
                    self._read(stream)
                finally:
                    with self._lock:
                        self._stream = None
                    api.close()
            except OublietteError:
                pass  # the engine is away; those who wait are told when it is back
            except Exception as error:  # whatever urllib3 and requests make of a broken stream
                del error
            self._over.wait(retry)
            retry = min(retry * 2, _LAST_RETRY)

    def _read(self, stream: Any) -> None:
        if self._over.is_set():
            stream.close()
            return
        for event in stream:
            action = str(event.get("Action") or event.get("status") or "")
            if action in _ENDINGS:
                actor: dict[str, Any] = event.get("Actor") or {}
                self._tell(str(actor.get("ID") or event.get("id") or ""))

    def _tell(self, engine_id: str | None) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake, engine_id)

    async def aclose(self) -> None:
        """End the thread."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._lock:
            stream = self._stream
        if stream is not None:
            await asyncio.to_thread(_close, stream)
        await asyncio.to_thread(thread.join, _JOIN_SECONDS)


def _close(stream: Any) -> None:
    with contextlib.suppress(Exception):
        stream.close()
