"""A PostgreSQL for benchmarks, which flushes its log to the disk, as it does where data count."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator


def flushing_server(**options: str) -> PostgresServer:
    """Return a server, not started yet; `options` are further settings of it."""
    return PostgresServer(fsync="on", full_page_writes="on", max_wal_size="1GB", **options)


@contextlib.contextmanager
def empty_database(url: str) -> Iterator[str]:
    """The database of this URL, or without one that of a server for the time of the block."""
    if url:
        yield url
        return
    with flushing_server() as server:
        yield server.new_database()
