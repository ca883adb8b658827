"""OnceTransaction, what the tool of one call writes into the file of answers, and its answer.

Transactions of one file take turns on the event loop, so that neither the loop nor the threads that
commit ever wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.from_thread

from oubliette.api.owned_context import finish
from oubliette.api.tools.errors import ToolError
from oubliette.failpoints import failpoint

if TYPE_CHECKING:
    import sqlite3

    from oubliette.api.callers.once_store import OnceStore

_LOOP_BUSY_SECONDS: Final = 2.0
"""Seconds that the event loop may wait for another program that writes to the file."""
_OVER: Final = "the call is over: its result is not awaited any more"
_log = logging.getLogger("oubliette.caller")


class OnceTransaction:
    """Transaction of one call: what its tool writes, and its answer.

    It is made on the event loop, begins when the tool asks for it, and has to be ended.
    """

    def __init__(self, store: OnceStore) -> None:
        self._store = store
        self._turns = store.turns
        self._has_turn = False
        self._over = False
        """Whether the tool has ended, or was given up: it gets no connection any more."""
        self._guard = threading.Lock()
        """Held while `_over` or `_database` changes, for a thread that was left behind."""
        self._loop_thread = threading.get_ident()
        self._in_thread = False
        self._database: sqlite3.Connection | None = None
        self._permitted: str | None = None
        """`COMMIT` or `ROLLBACK`, while this does so; the tool may do neither."""

    async def take_turn(self) -> None:
        """Wait until no other call writes."""
        if self._has_turn:
            return
        await self._turns.acquire()
        if self._over:  # the tool's thread was left behind meanwhile
            self._turns.release()
            raise ToolError(_OVER)
        self._has_turn = True

    def __call__(self) -> sqlite3.Connection:
        """Return the connection, on which nothing may be committed; begins at the first call.

        Raises:
            ToolError: the call is over, or another one writes and this cannot wait for it.
        """
        if self._over:
            raise ToolError(_OVER)
        if self._database is None:
            self._in_thread = threading.get_ident() != self._loop_thread
            if self._in_thread:
                anyio.from_thread.run(self.take_turn)
                database = self._store.open()
            else:
                self._take_turn_now()
                database = self._store.open(_LOOP_BUSY_SECONDS)
            database.set_authorizer(self._authorize)
            with self._guard:
                if self._over:
                    database.close()
                    raise ToolError(_OVER)
                self._database = database
        return self._database

    def _take_turn_now(self) -> None:
        if self._has_turn:
            return
        try:
            self._turns.acquire_nowait()
        except anyio.WouldBlock:
            raise ToolError(
                "another call writes through call.transaction() at this moment",
                hint="write the tool as `async def` itself, not as a function around one",
            ) from None
        self._has_turn = True

    def _authorize(self, action: int, verb: str | None, *_: object) -> int:
        """Refuse what would end the transaction before there is an answer."""
        import sqlite3

        if action != sqlite3.SQLITE_TRANSACTION or verb == self._permitted:
            return sqlite3.SQLITE_OK
        _log.error(
            "%s refused: call.transaction() is committed together with the answer, and rolled back"
            " when the tool fails; neither commit() nor `with` a connection is needed",
            verb,
        )
        return sqlite3.SQLITE_DENY

    async def keep(
        self, request_id: str, answer: dict[str, Any], *, abandoned: bool
    ) -> dict[str, Any]:
        """Commit the answer and the tool's writes together, of an error the answer alone.

        Where another program was first, its answer is returned, and the writes are undone.

        Args:
            request_id: Of the call.
            answer: `result` or `error`.
            abandoned: Whether the tool's thread may still run.

        Raises:
            sqlite3.Error: the file cannot be written; nothing of the call is in it.
        """
        with self._guard:
            self._over = True
        return await finish(
            asyncio.ensure_future(self._keep(request_id, answer, abandoned=abandoned))
        )

    async def _keep(
        self, request_id: str, answer: dict[str, Any], *, abandoned: bool
    ) -> dict[str, Any]:
        if "error" in answer:
            await asyncio.to_thread(self._undo, abandoned=abandoned)
        if not self._has_turn:
            await self._turns.acquire()
            self._has_turn = True
        return await asyncio.to_thread(self._commit, request_id, answer)

    def _commit(self, request_id: str, answer: dict[str, Any]) -> dict[str, Any]:
        import sqlite3

        database = self._database
        if database is None:
            return self._store.keep(request_id, answer)
        try:
            self._store.insert(database, request_id, answer)
        except sqlite3.IntegrityError:
            self._undo(abandoned=False)
            return self._store.keep(request_id, answer)
        failpoint("caller.before_commit")
        self._permitted = "COMMIT"
        database.execute("COMMIT")
        failpoint("caller.after_commit")
        self._database = None
        database.close()
        return answer

    async def end(self, *, abandoned: bool) -> None:
        """Undo what was not kept, and let the next call write."""
        with self._guard:
            self._over = True
        await finish(asyncio.ensure_future(self._end(abandoned=abandoned)))

    async def _end(self, *, abandoned: bool) -> None:
        try:
            if self._database is not None:
                await asyncio.to_thread(self._undo, abandoned=abandoned)
        finally:
            if self._has_turn:
                self._has_turn = False
                self._turns.release()

    def _undo(self, *, abandoned: bool) -> None:
        database, self._database = self._database, None
        if database is None:
            return
        # A thread that was left behind may still use the connection: it can write nothing any more,
        # and the connection ends with it. Closing one that is in use crashes the process.
        database.execute("PRAGMA query_only = ON")
        self._permitted = "ROLLBACK"
        if database.in_transaction:
            database.execute("ROLLBACK")
        if not (abandoned and self._in_thread):
            database.close()
