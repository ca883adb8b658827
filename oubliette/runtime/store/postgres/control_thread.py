"""Thread for a node's questions to the tables of the cluster, so that no event loop waits for them.

They are few and short: homes, listeners, claims. One connection serves them in order.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import psycopg

from oubliette.errors import StorageUnavailable
from oubliette.runtime.store.postgres.control_connection import control_connection, interrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_JOIN_SECONDS: Final = 10.0
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Asked:
    """One question, with the future of its answer."""

    __slots__ = ("ask", "future")

    def __init__(self, ask: Callable[[Connection], Any]) -> None:
        self.ask = ask
        self.future: Future[Any] = Future()


class ControlThread:
    """Connection to the cluster's tables with its thread: `start` it, and `close` it at the end.

    Args:
        url: Of the database.
        name: Purpose, in the server's list of sessions.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._queue: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"control-{name}", daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._connection: Connection | None = None

    def start(self) -> None:
        """Start the thread; it connects at the first question."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; questions that wait fail. Again: no effect."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
            if self._connection is not None:
                interrupt(self._connection)
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    async def run(
        self,
        function: Callable[Concatenate[Connection, _P], _T],
        *args: _P.args,
        **options: _P.kwargs,
    ) -> _T:
        """Return `function(connection, *args, **options)`, called on the thread.

        If the connection turns out to be lost, the function is called again on another one, so it
        must be one that may be repeated, as those of this package are. A caller that is cancelled
        leaves what has begun to its end.

        Raises:
            StorageUnavailable: the database does not answer, or this is closed.
        """
        asked = _Asked(lambda connection: function(connection, *args, **options))
        with self._lock:
            if self._closed:
                raise _closed()
            self._queue.put(asked)
        return await asyncio.wrap_future(asked.future)

    def _serve(self) -> None:
        while (asked := self._queue.get()) is not None:
            if not asked.future.set_running_or_notify_cancel():
                continue
            try:
                asked.future.set_result(self._answer(asked))
            except psycopg.OperationalError as error:
                self._disconnect()
                asked.future.set_exception(StorageUnavailable(f"the database: {error}"))
            except Exception as error:
                asked.future.set_exception(error)
        self._disconnect()
        while not self._queue.empty():
            left = self._queue.get()
            if left is not None and left.future.set_running_or_notify_cancel():
                left.future.set_exception(_closed())

    def _answer(self, asked: _Asked) -> Any:
        kept = self._connection
        if kept is not None:
            try:
                return asked.ask(kept)
            except psycopg.OperationalError:
                if not kept.closed and not kept.broken:
                    raise  # about the statement: it took too long
                self._disconnect()
        return asked.ask(self._connected())

    def _connected(self) -> Connection:
        connection = control_connection(self._url, self._name)
        with self._lock:
            if self._closed:
                connection.close()
                raise _closed()
            self._connection = connection
        return connection

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _closed() -> StorageUnavailable:
    return StorageUnavailable("the connection to the cluster's tables is closed")
