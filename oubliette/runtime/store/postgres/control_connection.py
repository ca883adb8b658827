"""Connection of a node's own affairs (lease, duties, placements), apart from the writer's.

A statement is a transaction of its own, so that a process that is stopped between two of them holds
no lock. Both ends notice a lost peer in seconds, where the defaults of TCP take hours.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.runtime.store.postgres.connecting import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT_SECONDS: Final = 3
STATEMENT_SECONDS: Final = 5.0
"""Time limit of a statement, in the server; a duty's wait for its lock has none."""
LOST_SECONDS: Final = 4
"""Time after which a peer that does not acknowledge is lost, on both ends."""


def control_connection(
    url: str, name: str, *, settings: Mapping[str, str] | None = None
) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect, with `name` in the server's list of sessions (`application_name`).

    Args:
        url: Of the database, or a connection string of libpq.
        name: What the connection is for.
        settings: Settings of the session, by name, that replace ours.

    Raises:
        psycopg.Error: the server does not answer or refuses.
    """
    chosen = {
        "statement_timeout": f"{STATEMENT_SECONDS:g}s",
        "lock_timeout": f"{STATEMENT_SECONDS:g}s",
        "tcp_keepalives_idle": "1",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(LOST_SECONDS * 1000),
        **(settings or {}),
    }
    return connect(
        url,
        application_name=f"oubliette {name}"[:63],
        options=" ".join(f"-c {key}={value}" for key, value in chosen.items()),
        connect_timeout=CONNECT_SECONDS,
        keepalives_idle=1,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=LOST_SECONDS * 1000,
    )


def interrupt(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Make a statement that waits for its answer in another thread fail at once.

    A request to cancel would need the server; its end of the connection may be the silent one.
    """
    with contextlib.suppress(OSError, psycopg.Error):
        peer = socket.socket(fileno=connection.fileno())
        try:
            peer.shutdown(socket.SHUT_RDWR)
        finally:
            peer.detach()
