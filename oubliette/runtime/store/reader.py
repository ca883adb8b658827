"""Reader of the database that never blocks the writer.

A few threads, each with a connection that cannot write. Each read is one consistent view, and
contains every commit made before it began.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from oubliette.errors import NotFound, StorageUnavailable, Unavailable
from oubliette.runtime.store import queries
from oubliette.runtime.store.errors import is_damage, storage_fault
from oubliette.runtime.store.reader_threads import ReaderThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from oubliette.records import Container
    from oubliette.runtime.store.connection import StoreConnection, StoreDatabase
    from oubliette.runtime.store.queries import Page

THREADS: Final = 4
CLOSE_SECONDS: Final = 1.0
"""Time for running reads to end when the reader is closed; then they are interrupted."""
_RETRY_FIRST: Final = 0.05
_RETRY_MOST: Final = 0.5
"""Seconds between attempts to read a database that is away; doubles from the first to the last."""

P = ParamSpec("P")
T = TypeVar("T")


def _read(
    query: Callable[Concatenate[StoreConnection, P], T],
) -> Callable[Concatenate[Reader, P], Coroutine[Any, Any, T]]:
    """Make a method of a Reader that runs this query."""

    @wraps(query)
    def read(reader: Reader, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return reader.run(query, *args, **kwargs)

    return read


class Reader:
    """Queries as coroutines; `run` takes any function of a connection.

    Most queries are methods too, with the arguments and results that they have in `queries`.

    All raise StorageUnavailable when the database cannot be read, Unavailable after `aclose`. A
    read waits for a server that is away as long as a write does: a restart of it, or a standby that
    takes over, is not noticed by who asks.
    """

    def __init__(self, database: StoreDatabase, threads: int = THREADS) -> None:
        self._database = database
        self._threads = ReaderThreads(threads)
        self._local = threading.local()
        self._connections: list[StoreConnection] = []
        self._closed = False
        self._closing = threading.Event()
        """Set with `_closed`, for threads that wait."""

    async def run(
        self,
        query: Callable[Concatenate[StoreConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a query (see `queries`) on a thread of the pool, and return its result.

        Raises:
            NotFound: an argument has the character NUL, which PostgreSQL takes in no text.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        if any(isinstance(each, str) and "\0" in each for each in (*args, *kwargs.values())):
            raise NotFound("not found: no id and no name has the character NUL")
        until = time.monotonic() + self._database.hold_seconds
        return await self._threads.run(partial(self._patient_view, until, query, *args, **kwargs))

    async def aclose(self) -> None:
        """Wait a second for running reads, then close the connections."""
        self._closed = True
        self._closing.set()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close as `aclose` does; blocks."""
        self._closed = True
        self._closing.set()
        impatience = threading.Timer(CLOSE_SECONDS, self._interrupt)
        impatience.start()
        try:
            self._threads.close()
        finally:
            impatience.cancel()
            impatience.join()
        while self._connections:
            self._database.release(self._connections.pop())

    def _interrupt(self) -> None:
        """Let the running reads fail: the server has hung."""
        for connection in list(self._connections):
            self._database.interrupt(connection)

    def _patient_view(
        self,
        until: float,
        query: Callable[Concatenate[StoreConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Read; while no connection can be made, try again until the monotonic second `until`."""
        pause = _RETRY_FIRST
        while True:
            try:
                return self._view(query, *args, **kwargs)
            except StorageUnavailable:
                left = until - time.monotonic()
                connected = getattr(self._local, "connection", None) is not None
                if connected or left <= 0 or self._closing.wait(min(pause, left)):
                    raise
            pause = min(2 * pause, _RETRY_MOST)

    def _view(
        self,
        query: Callable[Concatenate[StoreConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        with self._database.lock:
            try:
                try:
                    return self._viewed(self._connection(), query, *args, **kwargs)
                except Exception:
                    if not self._forget_lost() or self._closing.is_set():
                        raise
                # The connection was lost since the last read. A read may be repeated.
                return self._viewed(self._connection(), query, *args, **kwargs)
            except Exception as error:
                reason = storage_fault(error)
                if reason is None:
                    raise
                raise StorageUnavailable(
                    f"the database cannot be read: {reason}",
                    hint="oubliette doctor shows how to mend it" if is_damage(error) else None,
                ) from error

    @staticmethod
    def _viewed(
        connection: StoreConnection,
        query: Callable[Concatenate[StoreConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        connection.execute("BEGIN")
        try:
            return query(connection, *args, **kwargs)
        finally:
            connection.execute("COMMIT")

    def _forget_lost(self) -> bool:
        """Forget this thread's connection if it was lost; return whether it was."""
        connection: StoreConnection | None = getattr(self._local, "connection", None)
        if connection is None or not self._database.lost(connection):
            return False
        self._local.connection = None
        self._connections.remove(connection)
        self._database.release(connection)
        return True

    def _connection(self) -> StoreConnection:
        connection: StoreConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._database.connect_read_only()
            self._local.connection = connection
            self._connections.append(connection)
        return connection

    async def projects_with_containers(
        self, name_contains: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[Page, list[Container]]:
        """Return `projects`, and the containers of all projects, in one view; read-only."""
        if self._closed:
            raise Unavailable("the store is closed")
        remembered, question = self._database.remembered, (name_contains, limit, cursor)
        now = remembered.now()
        answer = remembered.find(question, now)
        if answer is None:
            answer = await self.run(queries.projects_with_containers, *question)
            remembered.put(question, now, answer)
        return answer

    log = _read(queries.log)
    events = _read(queries.events)
    event = _read(queries.event)
    bounds = _read(queries.bounds)
    last_index = _read(queries.last_index)
    caller_events = _read(queries.caller_events)
    committed_events = _read(queries.committed_events)
    last_seq = _read(queries.last_seq)

    project = _read(queries.project)
    project_named = _read(queries.project_named)
    projects_in_use = _read(queries.projects_in_use)
    session_ids = _read(queries.session_ids)
    workspace = _read(queries.workspace)
    workspaces = _read(queries.workspaces)
    workspace_page = _read(queries.workspace_page)
    next_workspace_time = _read(queries.next_workspace_time)
    containers = _read(queries.containers)

    session = _read(queries.session)
    with_tools = _read(queries.with_tools)
    sessions = _read(queries.sessions)
    live_sessions = _read(queries.live_sessions)
    tree_members = _read(queries.tree_members)
    live_session_ids = _read(queries.live_session_ids)
    count_live_sessions = _read(queries.count_live_sessions)
    ended_sessions = _read(queries.ended_sessions)
    children = _read(queries.children)
    latest_session = _read(queries.latest_session)
    turns = _read(queries.turns)
    turn = _read(queries.turn)
    turn_of_call = _read(queries.turn_of_call)

    request = _read(queries.request)
    open_requests = _read(queries.open_requests)
    permission = _read(queries.permission)
    open_permissions = _read(queries.open_permissions)

    principal = _read(queries.principal)
    token = _read(queries.token)
    tokens = _read(queries.tokens)
    idempotency = _read(queries.idempotency)
    meta = _read(queries.meta)
    newest_ids = _read(queries.newest_ids)
