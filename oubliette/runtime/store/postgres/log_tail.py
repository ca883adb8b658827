"""LogTail, which gives a machine the events that all machines have stored, in the order of seqs.

It waits for notifications of commits, and reads the log up to the horizon each time. A commit that
is held back by another transaction is read when that has ended.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.runtime.store.errors import StorageFault
from oubliette.runtime.store.postgres.commits import CHANNEL
from oubliette.runtime.store.postgres.connection import translated_errors
from oubliette.runtime.store.queries import committed_events, last_seq

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oubliette.records import Event
    from oubliette.runtime.store.postgres.connection import Connects, PostgresConnection

MISSED_SECONDS: Final = 5.0
"""Seconds after which the log is read without a notification: a machine that was killed between a
commit and its notification sends none."""
HELD_FIRST: Final = 0.002
HELD_MOST: Final = 0.25
"""Seconds between looks at the horizon while it holds commits back; doubles from the first to the
last."""
AGAIN_SECONDS: Final = 1.0
"""Seconds before another connection is tried."""

_log = logging.getLogger(__name__)


class LogTail:
    """Thread that reads the log. Start with `start`, end with `close`.

    Args:
        database: Of the log.
        on_events: Called on the thread with the next events; must be quick.
        on_failed: Called on the thread with the reason if it ends without `close`.
        wanted: Whether events are wanted now; otherwise they are passed over unread.
    """

    def __init__(
        self,
        database: Connects,
        *,
        on_events: Callable[[list[Event]], object],
        on_failed: Callable[[str], object],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.cursor = -1
        """Seq up to which the events were given, or passed over; -1 before the first look."""
        self.ready = threading.Event()
        """Set once it has its place in the log: later events are given."""
        self._database = database
        self._on_events = on_events
        self._on_failed = on_failed
        self._wanted = wanted
        self._closing = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="oubliette-log-tail", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and its connection. Blocks for as long as a read takes."""
        self._closing = True
        self._wake.close()
        if self._thread.ident is not None:
            self._thread.join()
        self._woken.close()

    def _run(self) -> None:
        try:
            self._follow_on()
        except Exception as error:
            _log.exception("the tail of the log failed")
            self._on_failed(f"{type(error).__name__}: {error}")

    def _follow_on(self) -> None:
        """Read the log until it is closed, over any number of connections."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing:
                try:
                    self._follow(selector)
                except StorageFault as error:
                    _log.warning("the log cannot be read now: %s", error)
                    selector.select(AGAIN_SECONDS)

    def _follow(self, selector: selectors.BaseSelector) -> None:
        """Read the log until it is closed or the connection is lost."""
        with contextlib.closing(self._database.connect_read_only()) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            held = HELD_FIRST
            with _registered(selector, connection):
                while not self._closing:
                    if self._read(connection):
                        seconds, held = held, min(held * 2, HELD_MOST)
                    else:
                        seconds, held = MISSED_SECONDS, HELD_FIRST
                    selector.select(seconds)
                    _take_notifications(connection)

    def _read(self, connection: PostgresConnection) -> bool:
        """Give what can be read; return whether there are commits beyond the horizon."""
        more, held = True, False
        while more and not self._closing:
            connection.execute("BEGIN")
            try:
                events: list[Event] = []
                head = last_seq(connection)
                # Asked after the view was taken: what is in it can be read by who wants it now.
                if self.cursor < 0 or not self._wanted():
                    self.cursor, more = head, False
                else:
                    events, self.cursor, more, _ = committed_events(connection, self.cursor)
                held = _beyond(connection, self.cursor)
            finally:
                connection.execute("COMMIT")
            if events:
                self._on_events(events)
            self.ready.set()
        return held


def _beyond(connection: PostgresConnection, seq: int) -> bool:
    row: Any = connection.execute("SELECT 1 FROM events WHERE seq > ? LIMIT 1", (seq,)).fetchone()
    return row is not None


@contextlib.contextmanager
def _registered(
    selector: selectors.BaseSelector, connection: PostgresConnection
) -> Generator[None]:
    number = connection.raw.fileno()
    selector.register(number, selectors.EVENT_READ)
    try:
        yield
    finally:
        selector.unregister(number)


def _take_notifications(connection: PostgresConnection) -> None:
    """Take all that have arrived; the log is read afterwards in any case.

    Raises:
        StorageFault: the connection was lost.
    """
    with translated_errors():
        for _ in connection.raw.notifies(timeout=0):
            pass
        if connection.raw.pgconn.status != psycopg.pq.ConnStatus.OK:
            raise StorageFault("the connection was lost")
