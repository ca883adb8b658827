"""Search of ids by a part of them, for users who do not type whole ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from oubliette.runtime.store.connection import is_postgres

if TYPE_CHECKING:
    from oubliette.runtime.store.connection import StoreConnection

Kind = Literal["project", "session", "token", "workspace"]

MOST: Final = 100
"""Limit of the results: a longer list is not useful."""

_TABLES: Final[dict[Kind, str]] = {
    "project": "projects WHERE deleted_at IS NULL AND",
    "session": "sessions WHERE",
    "token": "tokens WHERE",
    "workspace": "workspaces WHERE deleted_at IS NULL AND",
}


def ids_with(connection: StoreConnection, kind: Kind, beginning: str, end: str) -> list[str]:
    """Return ids of a kind that begin with `beginning` or end with `end`, in their order.

    Args:
        connection: a connection to a database of ours.
        kind: the kind of the ids.
        beginning: with the kind's prefix; empty: not used.
        end: empty: not used.
    """
    rows = connection.execute(
        f"SELECT id FROM {_TABLES[kind]} "  # noqa: S608 - one of four texts of ours
        f"(substr(id, 1, :first) = :beginning OR {_end(connection)} = :end)"
        " ORDER BY id LIMIT :most",
        {
            "first": len(beginning) or 1,
            "beginning": beginning,
            "last": len(end) or 1,
            "end": end,
            "most": MOST,
        },
    )
    return [each for (each,) in rows]


def _end(connection: StoreConnection) -> str:
    return "right(id, :last)" if is_postgres(connection) else "substr(id, -:last)"


def project_called(connection: StoreConnection, name: str) -> list[str]:
    """The id of the live project of exactly this name, if there is one."""
    rows = connection.execute(
        "SELECT id FROM projects WHERE name = ? AND deleted_at IS NULL", (name,)
    )
    return [each for (each,) in rows]


def token_names(connection: StoreConnection) -> dict[str, str]:
    """Return each key's name by its id; revoked ones too."""
    name = "json_extract(data, '$.name')"
    if is_postgres(connection):
        name = "convert_from(data, 'UTF8')::json ->> 'name'"
    return dict(connection.execute(f"SELECT id, {name} FROM tokens"))  # noqa: S608 - ours


def project_names(connection: StoreConnection) -> dict[str, str]:
    """Return each project's name by its id; deleted ones too."""
    return dict(connection.execute("SELECT id, name FROM projects"))
