"""StoreConnection, what operations and queries need of a database connection.

A connection of `sqlite3` is one as it is. That of PostgreSQL takes the same SQL and translates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from oubliette.runtime.store.remembered import Remembered


class Rows(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any:
        """The next row, None after the last one."""
        ...

    def fetchall(self) -> list[Any]: ...

    def close(self) -> object: ...

    def __iter__(self) -> Iterator[Any]: ...


class StoreConnection(Protocol):
    """Connection on which SQL is executed, with `?`, `?1` or `:name` for the parameters."""

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Rows: ...

    def close(self) -> object: ...


class StoreDatabase(Protocol):
    """Database as readers need it, SQLite's or PostgreSQL's."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held during every query."""
        ...

    @property
    def hold_seconds(self) -> float:
        """Time for which a read waits for a database that is away; 0: it can only be broken."""
        ...

    @property
    def remembered(self) -> Remembered:
        """Cache of popular answers."""
        ...

    def connect_read_only(self) -> StoreConnection: ...

    def release(self, connection: Any, /) -> None: ...

    def interrupt(self, connection: Any, /) -> None:
        """Let a statement fail that another thread executes; call from any thread."""
        ...

    def lost(self, connection: Any, /) -> bool:
        """Whether a connection cannot be used any more, and another one may be."""
        ...


def is_postgres(connection: StoreConnection) -> bool:
    """Whether this is a connection to PostgreSQL, for the few statements that differ."""
    return getattr(connection, "dialect", "sqlite") == "postgresql"
