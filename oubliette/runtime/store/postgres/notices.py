"""Notices, which calls back when another session of the database notifies a channel.

A notice means that something has changed; its state now is read by the follower. Notices that come
without a connection are lost, so after each connection everything has to be read again.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import sql

from oubliette.runtime.store.postgres.control_connection import control_connection, interrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

AGAIN_SECONDS: Final = 0.5
"""Time until a failed connection is made again."""
_JOIN_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


class _Follower(NamedTuple):
    channel: str
    on_notice: Callable[[str], object]
    on_gap: Callable[[], object]


class Notices:
    """Connection that listens, with its thread: `start` it, and `close` it at the end.

    Args:
        url: Of the database.
        name: Purpose, in the server's list of sessions.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._followers: list[_Follower] = []
        self._closing = False
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"notices-{name}", daemon=True)

    def follow(
        self, channel: str, on_notice: Callable[[str], object], on_gap: Callable[[], object]
    ) -> None:
        """Follow a channel from now on, before or after the start.

        Both are called on the thread of the notices and must be quick; an error is logged.

        Args:
            channel: Its name.
            on_notice: Called with the payload of each notice.
            on_gap: Called when notices may have been missed: once at first, and after each time
                without a connection. What was notified after it comes as notices.
        """
        with self._lock:
            self._followers.append(_Follower(channel, on_notice, on_gap))
            if not self._closing:
                self._wake.send(b".")

    def start(self) -> None:
        """Start the thread, which connects; once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and its connection, without waiting for the server. Again: no effect."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wake.close()
            if self._connection is not None:
                interrupt(self._connection)
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._woken.close()

    def _run(self) -> None:
        away = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing:
                try:
                    connection = self._connected()
                    away = False
                    self._follow(connection, selector)
                except (psycopg.Error, OSError) as error:
                    if not self._closing and not away:
                        _log.warning("notices are not received now: %s", error)
                    away = True
                finally:
                    self._disconnect()
                if not self._closing:
                    selector.select(AGAIN_SECONDS)

    def _connected(self) -> Connection:
        connection = control_connection(self._url, f"notices of {self._name}")
        with self._lock:
            self._connection = connection
            if self._closing:  # before it was there to be interrupted
                interrupt(connection)
        return connection

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _follow(self, connection: Connection, selector: selectors.BaseSelector) -> None:
        """Pass on notices until this is closed.

        Raises:
            psycopg.Error: the connection was lost.
        """
        number = connection.fileno()
        selector.register(number, selectors.EVENT_READ)
        try:
            told = 0
            while not self._closing:
                told += self._begin(connection, told)
                # Those that came with an answer are no news of the socket any more.
                for notice in connection.notifies(timeout=0):
                    self._pass_on(notice)
                selector.select()
                self._drain()
                if connection.pgconn.status != psycopg.pq.ConnStatus.OK:
                    raise psycopg.OperationalError("the connection was lost")
        finally:
            selector.unregister(number)

    def _begin(self, connection: Connection, told: int) -> int:
        """Listen for the followers after the first `told`; return how many they are."""
        with self._lock:
            new = self._followers[told:]
        for channel in {each.channel for each in new}:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        for each in new:
            _call(each.on_gap)
        return len(new)

    def _pass_on(self, notice: psycopg.Notify) -> None:
        with self._lock:
            followers = [each for each in self._followers if each.channel == notice.channel]
        for each in followers:
            _call(each.on_notice, notice.payload)

    def _drain(self) -> None:
        """Take the signs that there are more followers."""
        try:
            self._woken.recv(4096)
        except BlockingIOError:
            return


def _call(function: Callable[..., object], *args: str) -> None:
    try:
        function(*args)
    except Exception:
        _log.exception("a notice could not be passed on")
