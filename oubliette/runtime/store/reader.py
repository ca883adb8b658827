"""Reader of the database that never blocks the writer.

A few threads, each with a connection that cannot write. Each read is one consistent view, and
contains every commit made before it began.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from oubliette.errors import StorageUnavailable, Unavailable
from oubliette.runtime.store import queries
from oubliette.runtime.store.errors import storage_fault
from oubliette.runtime.store.reader_threads import ReaderThreads

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from oubliette.records import (
        CallerRequest,
        Container,
        Event,
        IdempotencyKey,
        PermissionRequest,
        Principal,
        Project,
        Session,
        Token,
        Turn,
        Workspace,
    )
    from oubliette.runtime.store.database import Database
    from oubliette.runtime.store.queries import LogSlice, Page

THREADS: Final = 4

P = ParamSpec("P")
T = TypeVar("T")


class Reader:
    """Queries as coroutines; `run` takes any function of a connection.

    All raise StorageUnavailable when the database cannot be read, Unavailable after `aclose`.
    """

    def __init__(self, database: Database, threads: int = THREADS) -> None:
        self._database = database
        self._threads = ReaderThreads(threads)
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._closed = False

    async def run(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a query (see `queries`) on a thread of the pool, and return its result."""
        if self._closed:
            raise Unavailable("the store is closed")
        return await self._threads.run(partial(self._view, query, *args, **kwargs))

    async def aclose(self) -> None:
        """Wait for running reads, then close the connections."""
        self._closed = True
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close as `aclose` does; blocks."""
        self._closed = True
        self._threads.close()
        while self._connections:
            self._database.release(self._connections.pop())

    def _view(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        with self._database.lock:
            try:
                connection = self._connection()
                connection.execute("BEGIN")
                try:
                    return query(connection, *args, **kwargs)
                finally:
                    connection.execute("COMMIT")
            except Exception as error:
                reason = storage_fault(error)
                if reason is None:
                    raise
                raise StorageUnavailable(f"the database cannot be read: {reason}") from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._database.connect_read_only()
            self._local.connection = connection
            self._connections.append(connection)
        return connection

    # ------------------------------------------------------------------ the log

    async def log(
        self,
        session_id: str,
        since_index: int = -1,
        max_events: int = queries.MAX_EVENTS,
        max_bytes: int = queries.MAX_BYTES,
    ) -> LogSlice:
        """Return events after `since_index` with the bounds of the log, in one view."""
        return await self.run(queries.log, session_id, since_index, max_events, max_bytes)

    async def events(
        self,
        session_id: str,
        since_index: int = -1,
        max_events: int = queries.MAX_EVENTS,
        max_bytes: int = queries.MAX_BYTES,
    ) -> list[Event]:
        """Return the events of `log`: one at least if there is any, else up to the limits."""
        return (await self.log(session_id, since_index, max_events, max_bytes)).events

    async def event(self, session_id: str, index: int) -> Event | None:
        """Return one event."""
        return await self.run(queries.event, session_id, index)

    async def bounds(self, session_id: str) -> tuple[int, int]:
        """Return first index kept and last index of a session's log; (0, -1) for a new one."""
        return await self.run(queries.bounds, session_id)

    async def last_index(self, session_id: str) -> int:
        """Return the index of the last event of a session, -1 if there was never one."""
        return (await self.bounds(session_id))[1]

    async def last_source(self, session_id: str, process_id: str) -> tuple[int, int]:
        """Return (offset, ordinal) of the newest event of that process; (-1, -1) if none."""
        return await self.run(queries.last_source, session_id, process_id)

    async def caller_events(
        self,
        principal: str,
        caller_id: str,
        after_seq: int = 0,
        limit: int = queries.MAX_EVENTS,
        max_bytes: int = queries.MAX_BYTES,
    ) -> list[Event]:
        """Return this caller's events after `after_seq`, in commit order, up to the limits."""
        return await self.run(
            queries.caller_events, principal, caller_id, after_seq, limit, max_bytes
        )

    async def last_seq(self) -> int:
        """Return the highest seq that may have been assigned, 0 at first; later ones are higher."""
        return await self.run(queries.last_seq)

    # ------------------------------------------------------------------ projects

    async def project(self, project_id: str) -> Project | None:
        """Return one project, deleted or not."""
        return await self.run(queries.project, project_id)

    async def project_named(self, name: str) -> Project | None:
        """Return the live project of that name."""
        return await self.run(queries.project_named, name)

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
            answer = await self.run(_projects_with_containers, name_contains, limit, cursor)
            remembered.put(question, now, answer)
        return answer

    async def workspace(self, workspace_id: str) -> Workspace | None:
        """Return one workspace, deleted or not."""
        return await self.run(queries.workspace, workspace_id)

    async def workspaces(self, project_id: str) -> list[Workspace]:
        """Return the project's workspaces that were not deleted, oldest first."""
        return await self.run(queries.workspaces, project_id)

    async def containers(self, project_id: str | None = None) -> list[Container]:
        """Return containers that were not removed yet, of all projects or one."""
        return await self.run(queries.containers, project_id)

    # ------------------------------------------------------------------ sessions

    async def session(self, session_id: str) -> Session | None:
        """Return one session."""
        return await self.run(queries.session, session_id)

    async def sessions(
        self,
        project_id: str | None = None,
        status: str | None = None,
        exploration_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        principal: str | None = None,
        newest_first: bool = False,
    ) -> Page:
        """Return sessions that match all given conditions, oldest first unless `newest_first`."""
        return await self.run(
            queries.sessions,
            project_id,
            status,
            exploration_id,
            principal=principal,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
        )

    async def live_sessions(
        self,
        project_id: str | None = None,
        container_id: str | None = None,
        workspace_id: str | None = None,
        exploration_id: str | None = None,
    ) -> list[Session]:
        """Return sessions whose status is not terminal, as narrow as given."""
        return await self.run(
            queries.live_sessions, project_id, container_id, workspace_id, exploration_id
        )

    async def count_live_sessions(self, project_id: str, *, top_level: bool = True) -> int:
        """Return how many sessions of a project are live; only `top_level` excludes children."""
        return await self.run(queries.count_live_sessions, project_id, top_level=top_level)

    async def ended_sessions(
        self, before: float, project_id: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Return ids of ended sessions, last changed before `before` (wall seconds)."""
        return await self.run(queries.ended_sessions, before, project_id, limit)

    async def children(self, session_id: str) -> list[Session]:
        """Return the session's direct children, oldest first."""
        return await self.run(queries.children, session_id)

    async def latest_session(
        self, workspace_id: str, principal: str, parent_session_id: str | None = None
    ) -> Session | None:
        """Return the newest session not ended by a user; top-level unless a parent is given."""
        return await self.run(queries.latest_session, workspace_id, principal, parent_session_id)

    async def turns(self, session_id: str, states: Sequence[str] | None = None) -> list[Turn]:
        """Return the session's turns in order, or those in one of `states`."""
        return await self.run(queries.turns, session_id, states)

    async def turn(self, session_id: str, number: int) -> Turn | None:
        """Return one turn."""
        return await self.run(queries.turn, session_id, number)

    async def turn_of_call(self, call_id: str) -> Turn | None:
        """Return the newest turn made by an agent's call (`{parent session}/{call id}`)."""
        return await self.run(queries.turn_of_call, call_id)

    # ------------------------------------------------------------------ caller requests

    async def request(self, request_id: str) -> CallerRequest | None:
        """Return one request of a caller's tool."""
        return await self.run(queries.request, request_id)

    async def open_requests(
        self,
        session_id: str | None = None,
        *,
        principal: str | None = None,
        caller_id: str | None = None,
    ) -> list[CallerRequest]:
        """Return requests without an outcome, of a session or of a caller, oldest first."""
        return await self.run(queries.open_requests, session_id, principal, caller_id)

    async def recent_requests(self, session_id: str, since: float) -> list[CallerRequest]:
        """Return a session's requests that are open, or were settled at `since` or later."""
        return await self.run(queries.recent_requests, session_id, since)

    # ------------------------------------------------------------------ permissions

    async def permission(self, request_id: str) -> PermissionRequest | None:
        """Return one permission request."""
        return await self.run(queries.permission, request_id)

    async def open_permissions(self, principal: str, caller_id: str) -> list[PermissionRequest]:
        """Return this caller's undecided permission requests, oldest first."""
        return await self.run(queries.open_permissions, principal, caller_id)

    async def permissions(self, session_id: str, turn: int) -> list[PermissionRequest]:
        """Return a session's permission requests of this turn, and all open ones; oldest first."""
        return await self.run(queries.permissions, session_id, turn)

    # ------------------------------------------------------------------ rights and the rest

    async def principal(self, principal_id: str) -> Principal | None:
        """Return one principal."""
        return await self.run(queries.principal, principal_id)

    async def token(self, token_id: str) -> Token | None:
        """Return one token, revoked or not."""
        return await self.run(queries.token, token_id)

    async def tokens(self) -> list[Token]:
        """Return all tokens, revoked ones too."""
        return await self.run(queries.tokens)

    async def idempotency(self, principal: str, tool: str, key: str) -> IdempotencyKey | None:
        """Return a claimed key; the caller checks its age."""
        return await self.run(queries.idempotency, principal, tool, key)

    async def meta(self, key: str) -> str | None:
        """Return one value of the instance."""
        return await self.run(queries.meta, key)


def _projects_with_containers(
    connection: sqlite3.Connection, name_contains: str | None, limit: int, cursor: str | None
) -> tuple[Page, list[Container]]:
    page = queries.projects(connection, name_contains, limit, cursor)
    return page, queries.containers(connection, None)
