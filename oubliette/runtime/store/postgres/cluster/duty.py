"""Duty of one node at a time, such as schedules and the reaping of what has expired.

The holder is the session of the database that has the advisory lock. The others wait for it in the
server, without asking again. The server ends the holder's session after `IDLE_SECONDS` without a
sign of life, so a stopped process or a lost machine keeps no duty; the next one has it then.
"""

from __future__ import annotations

import logging
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.runtime.store.postgres.cluster.node_lease import since_boot
from oubliette.runtime.store.postgres.control_connection import control_connection, interrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

IDLE_SECONDS: Final = 4
"""Time without a sign of life after which the server ends the holder's session."""
SURE_SECONDS: Final = 3.0
"""Time after a sign of life for which the holder counts on having the duty."""
SIGN_SECONDS: Final = 1.0
"""Time between two signs of life."""
_RETRY_SECONDS: Final = 1.0
"""Time until a failed connection is made again."""
_JOIN_SECONDS: Final = 10.0
_LIMIT_WORK: Final = "SET statement_timeout = '2s'"
"""Time limit of a statement of the work: the next sign of life waits for it."""
_LOCK_CLASS: Final = 1868722281
"""First half of the keys of our locks; the second is made of the duty's name."""
_SETTINGS: Final = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": f"{IDLE_SECONDS}s",
    # A waiter whose process has ended must not get the lock.
    "client_connection_check_interval": "1s",
}

_log = logging.getLogger(__name__)


class Duty:
    """One candidate for a duty, with its thread: `start` it, and `close` it at the end.

    Args:
        url: Of the database.
        name: Name of the duty, the same on all nodes.
        on_begin: Called, on the duty's thread, when this candidate has the duty.
        on_end: Called, on the duty's thread, when it has it no more, also by `close`. What it does
            for the duty must have stopped before: see `held`.
        work: Called, on the duty's thread, after each sign of life, with the session that has the
            duty: what fails with it is no longer the holder's to do. It must be done in a second or
            two; an error of it is logged.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        on_begin: Callable[[], object],
        on_end: Callable[[], object],
        work: Callable[[Connection], object] | None = None,
    ) -> None:
        self.name = name
        self._url = url
        self._on_begin = on_begin
        self._on_end = on_end
        self._work = work
        self._sure_until = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"duty-{name}", daemon=True)
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    @property
    def held(self) -> bool:
        """Whether this candidate surely has the duty now; ask before each thing done for it."""
        return since_boot() < self._sure_until

    def start(self) -> None:
        """Wait for the duty in the thread."""
        self._thread.start()

    def close(self) -> None:
        """Give up the duty, or the wait for it, and end the thread. Again: no effect."""
        self._closing.set()
        with self._lock:
            if self._connection is not None:
                interrupt(self._connection)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        delay = 0.0
        while not self._closing.wait(delay):
            try:
                self._serve()
            except (psycopg.Error, OSError) as error:
                if not self._closing.is_set():
                    _log.warning("a duty lost its session of the database: %s", error)
            delay = _RETRY_SECONDS

    def _serve(self) -> None:
        """Wait for the lock, then keep it until the session ends."""
        connection = control_connection(self._url, f"duty {self.name}", settings=_SETTINGS)
        with self._lock:
            self._connection = connection
        try:
            if self._closing.is_set():  # before it was there to be interrupted
                return
            key = zlib.crc32(self.name.encode()) - 2**31
            connection.execute("SELECT pg_advisory_lock(%s, %s)", (_LOCK_CLASS, key))
            self._sign(connection)
            _log.info("this node has a duty: %s", self.name)
            self._on_begin()
            try:
                connection.execute(_LIMIT_WORK)
                while not self._closing.wait(SIGN_SECONDS):
                    self._sign(connection)
                    self._do_work(connection)
            finally:
                self._sure_until = 0.0
                self._on_end()
        finally:
            with self._lock:
                self._connection = None
            connection.close()

    def _do_work(self, connection: Connection) -> None:
        if self._work is None:
            return
        try:
            self._work(connection)
        except Exception:
            if connection.closed or connection.broken:
                raise
            _log.exception("the work of a duty failed")

    def _sign(self, connection: Connection) -> None:
        asked = since_boot()
        connection.execute("SELECT 1")
        self._sure_until = asked + SURE_SECONDS
