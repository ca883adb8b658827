"""Pages of listings, and records from rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oubliette.runtime.store.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oubliette.records import Record
    from oubliette.runtime.store.connection import Rows, StoreConnection


class Page(NamedTuple):
    """Part of a listing, in order of ids, which is the order of creation."""

    records: Sequence[Any]
    next_cursor: str | None
    """Cursor of the next page; None at the end."""


def records(kind: type[Record], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The records of rows whose first column holds their data."""
    return [decode(kind, row[0]) for row in rows]


def one(kind: type[Record], rows: Rows) -> Any:
    """The record of the first row, None if there is no row."""
    row = rows.fetchone()
    rows.close()
    return decode(kind, row[0]) if row else None


def listing(
    connection: StoreConnection,
    kind: type[Record],
    table: str,
    conditions: Sequence[tuple[str, Any]],
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> Page:
    """Return one page; of `conditions`, those with the value None are ignored."""
    wanted = [(sql, value) for sql, value in conditions if value is not None]
    if cursor is not None:
        wanted.append(("id < ?" if newest_first else "id > ?", cursor))
    where = " AND ".join(sql for sql, _ in wanted) or "1 = 1"
    order = "DESC" if newest_first else "ASC"
    rows = connection.execute(
        f"SELECT data, id FROM {table} WHERE {where} ORDER BY id {order} LIMIT ?",  # noqa: S608
        (*(value for _, value in wanted), limit + 1),
    ).fetchall()
    more = len(rows) > limit
    return Page(records(kind, rows[:limit]), rows[limit - 1][1] if more else None)
