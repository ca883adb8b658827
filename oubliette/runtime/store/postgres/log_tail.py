"""LogTail, which gives a machine the events that all machines have stored, in the order of seqs.

It waits for notifications of commits of other processes, and to be woken by the writer of its own;
each time it reads the log up to the horizon. A commit that is held back by another transaction is
read when that has ended.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import psycopg

from oubliette.runtime.store.errors import StorageFault
from oubliette.runtime.store.log_order import HORIZON
from oubliette.runtime.store.postgres.commits import CHANNEL
from oubliette.runtime.store.postgres.connection import translated_errors
from oubliette.runtime.store.postgres.control_connection import interrupt
from oubliette.runtime.store.queries.event_log import COLUMNS, MAX_BYTES, MAX_EVENTS, event_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oubliette.records import Event
    from oubliette.runtime.store.postgres.connection import Connects, PostgresConnection

MISSED_SECONDS: Final = 5.0
"""Seconds after which the log is read without a notification: a machine that was killed between a
commit and its notification sends none."""
HELD_FIRST: Final = 0.0005
HELD_MOST: Final = 0.25
"""Seconds between looks at the horizon while it holds commits back; doubles from the first to the
last."""
AGAIN_SECONDS: Final = 1.0
"""Seconds before another connection is tried."""
CLOSE_SECONDS: Final = 1.0
"""Seconds for a read to end when the tail is closed; then it is interrupted."""

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
        self._connection: PostgresConnection | None = None
        self._away = False
        """Whether the log could not be read at the latest attempt; logged once for each outage."""
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._awake = False
        """Whether a byte that wakes the thread is on its way."""
        self._waking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="oubliette-log-tail", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._database.news.follow(self._wake_up)
        self._thread.start()

    def close(self) -> None:
        """End the thread and its connection. Blocks while it reads, for a second at most."""
        self._database.news.leave(self._wake_up)
        with self._waking:
            self._closing = True
            self._wake.close()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
            reading = self._connection
            if self._thread.is_alive() and reading is not None:  # the server has hung
                interrupt(reading.raw)
            self._thread.join()
        self._woken.close()

    def _wake_up(self) -> None:
        """Let the thread read the log, from any thread."""
        with self._waking:
            if not self._awake and not self._closing:
                self._awake = True
                self._wake.send(b".")

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
                    if not self._away:
                        _log.warning("the log cannot be read now: %s", error)
                    self._away = True
                    self._fall_asleep()
                    selector.select(AGAIN_SECONDS)

    def _follow(self, selector: selectors.BaseSelector) -> None:
        """Read the log until it is closed or the connection is lost."""
        with contextlib.closing(self._database.connect_read_only()) as connection:
            self._connection = connection
            connection.execute(f"LISTEN {CHANNEL}")
            # Its statements are prepared: a plan from when the log was short would scan a long one.
            connection.execute("SET enable_seqscan = off")
            connection.execute("SET jit = off")  # which the cost of what is off would call for
            held = HELD_FIRST
            with _registered(selector, connection):
                while not self._closing:
                    if self._read(connection):
                        seconds, held = held, min(held * 2, HELD_MOST)
                    else:
                        seconds, held = MISSED_SECONDS, HELD_FIRST
                    # What was notified during the read came with its answers: the socket, which
                    # is awaited here, does not have it any more.
                    if not self._notified(connection):
                        self._wait(selector, connection, seconds)

    def _wait(
        self, selector: selectors.BaseSelector, connection: PostgresConnection, seconds: float
    ) -> None:
        """Wait for something to read, but for notifications of this process."""
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            ready = {key.fileobj for key, _ in selector.select(left)}
            woken = self._woken in ready
            if woken:
                self._fall_asleep()
            if self._notified(connection) or woken:
                return

    def _fall_asleep(self) -> None:
        """Take the byte; a commit from now on sends another one."""
        with self._waking, contextlib.suppress(BlockingIOError):
            self._awake = False
            self._woken.recv(16)

    def _notified(self, connection: PostgresConnection) -> bool:
        """Take all notifications; return whether other processes sent any.

        Raises:
            StorageFault: the connection was lost.
        """
        own = self._database.news.token
        with translated_errors():
            arrived = [each.payload != own for each in connection.raw.notifies(timeout=0)]
            if connection.raw.pgconn.status != psycopg.pq.ConnStatus.OK:
                raise StorageFault("the connection was lost")
        return any(arrived)

    def _read(self, connection: PostgresConnection) -> bool:
        """Give what can be read; return whether there are commits beyond the horizon."""
        more, held = True, False
        while more and not self._closing:
            events, cursor, more, held = self._next(connection)
            # Not before: with the connection, what was read of it may be lost.
            self.cursor = cursor
            self._away = False
            if events:
                self._on_events(events)
            self.ready.set()
        return held

    def _next(self, connection: PostgresConnection) -> TailRead:
        if self.cursor < 0:
            return head_of_log(connection)
        if not self._wanted():
            passed = head_of_log(connection)
            # Asked again after the view was taken: what is in it can be read by who wants it now.
            if not self._wanted():
                return passed
        return read_on(connection, self.cursor)


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


_HELD: Final = "coalesce((SELECT max(events.seq) FROM events) > head.seq, false)"
"""Whether there are events beyond the horizon, found at the end of an index."""
_HEAD: Final = f"""
WITH head AS MATERIALIZED ({HORIZON})
SELECT coalesce((SELECT max(events.seq) FROM events WHERE events.seq <= head.seq), 0),
  {_HELD} AS held
FROM head"""  # noqa: S608
_READ: Final = f"""
WITH head AS MATERIALIZED ({HORIZON})
SELECT following.*, {_HELD} AS held
FROM head LEFT JOIN LATERAL (
  SELECT {COLUMNS} FROM events WHERE events.seq > %s AND events.seq <= head.seq
  ORDER BY events.seq LIMIT %s
) AS following ON true
ORDER BY following.seq"""  # noqa: S608


class TailRead(NamedTuple):
    """Result of one read of a tail: all that follows its cursor up to the horizon.

    A statement has one view of the database, so its horizon is that of the events which it returns.
    """

    events: list[Event]
    cursor: int
    """Seq up to which nothing is left out: that of an event, see `last_seq` of the queries."""
    more: bool
    """Whether events below the horizon follow."""
    held: bool
    """Whether there are commits beyond the horizon."""


def _executed(connection: PostgresConnection, sql: str, *values: int) -> Any:
    return connection.raw.execute(cast("Any", sql), values or None, prepare=True)


def head_of_log(connection: PostgresConnection) -> TailRead:
    """Pass over every event up to the horizon."""
    with translated_errors():
        row = _executed(connection, _HEAD).fetchone()
    return TailRead([], row[0], more=False, held=row[1])


def read_on(connection: PostgresConnection, cursor: int) -> TailRead:
    """Read what follows the cursor, up to the limits of one read."""
    with translated_errors():
        rows: list[Any] = _executed(connection, _READ, cursor, MAX_EVENTS + 1).fetchall()
    events: list[Event] = []
    size = 0
    held = rows[0][-1]
    for *row, _ in rows:
        if row[0] is None:
            break  # there is none
        size += len(row[4])
        if events and (len(events) >= MAX_EVENTS or size > MAX_BYTES):
            return TailRead(events, events[-1].seq, more=True, held=held)
        events.append(event_of(tuple(row)).sendable())
    return TailRead(events, events[-1].seq if events else cursor, more=False, held=held)
