"""Queries of projects, their workspaces and containers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from oubliette.records import Container, Project, Workspace
from oubliette.runtime.store.queries.paging import Page, listing, one, records
from oubliette.runtime.store.queries.session_turns import ALIVE

if TYPE_CHECKING:
    from oubliette.runtime.store.connection import StoreConnection


def project(connection: StoreConnection, project_id: str) -> Project | None:
    """One project, deleted or not."""
    return one(Project, connection.execute("SELECT data FROM projects WHERE id = ?", (project_id,)))


def project_named(connection: StoreConnection, name: str) -> Project | None:
    sql = "SELECT data FROM projects WHERE name = ? AND deleted_at IS NULL"
    return one(Project, connection.execute(sql, (name,)))


def projects(
    connection: StoreConnection,
    name_contains: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page:
    """Return live projects, oldest first; `name_contains` is case-insensitive."""
    part = name_contains.casefold() if name_contains else None
    conditions = [("deleted_at IS NULL AND 1 = ?", 1), ("instr(folded, ?) > 0", part)]
    return listing(connection, Project, "projects", conditions, limit=limit, cursor=cursor)


def projects_with_containers(
    connection: StoreConnection,
    name_contains: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> tuple[Page, list[Container]]:
    return projects(connection, name_contains, limit, cursor), containers(connection)


def projects_in_use(connection: StoreConnection) -> list[Project]:
    """The existing projects that have a live session or a container, oldest first."""
    alive = f"SELECT project_id FROM sessions{ALIVE} WHERE live = 1"  # noqa: S608 - ours
    rows = connection.execute(
        f"SELECT data FROM projects WHERE deleted_at IS NULL AND id IN ({alive}"  # noqa: S608
        " UNION SELECT project_id FROM containers) ORDER BY id"
    )
    return records(Project, rows)


def workspace(connection: StoreConnection, workspace_id: str) -> Workspace | None:
    """One workspace, deleted or not."""
    return one(
        Workspace, connection.execute("SELECT data FROM workspaces WHERE id = ?", (workspace_id,))
    )


def workspaces(connection: StoreConnection, project_id: str) -> list[Workspace]:
    """The project's workspaces that were not deleted, oldest first."""
    sql = (
        "SELECT data FROM workspaces WHERE project_id = ? AND deleted_at IS NULL"
        " ORDER BY created_at, id"
    )
    return records(Workspace, connection.execute(sql, (project_id,)))


def workspace_page(
    connection: StoreConnection, project_id: str, limit: int = 100, cursor: str | None = None
) -> Page:
    """Return one page of `workspaces`; the cursor is an id."""
    after = workspace(connection, cursor) if cursor is not None else None
    rows = connection.execute(
        "SELECT data FROM workspaces WHERE project_id = ? AND deleted_at IS NULL"
        " AND (created_at, id) > (?, ?) ORDER BY created_at, id LIMIT ?",
        (project_id, after.created_at if after else -1.0, after.id if after else "", limit + 1),
    ).fetchall()
    found = records(Workspace, rows[:limit])
    return Page(found, found[-1].id if len(rows) > limit else None)


def next_workspace_time(connection: StoreConnection, project_id: str, now: float) -> float:
    """Return `now`, or the next time after the project's newest workspace if that is later.

    The clock may have been ahead then; workspaces are listed in the order of their creation.
    """
    sql = "SELECT max(created_at) FROM workspaces WHERE project_id = ?"
    newest = connection.execute(sql, (project_id,)).fetchone()[0]
    return now if newest is None else max(now, math.nextafter(newest, math.inf))


def containers(connection: StoreConnection, project_id: str | None = None) -> list[Container]:
    """Return all containers that were not removed yet, or those of one project."""
    where, values = (" WHERE project_id = ?", (project_id,)) if project_id else ("", ())
    sql = f"SELECT data FROM containers{where} ORDER BY id"  # noqa: S608 - ours
    return records(Container, connection.execute(sql, values))
