"""Completion of ids as users type them: whole, or a beginning or an end that is unique.

Ids of one kind begin alike for years (they sort by time), so the end is the convenient piece.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, Literal, cast

from oubliette import ids
from oubliette.errors import InvalidParameter, NotFound

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from oubliette.runtime.store.connection import StoreConnection, StoreDatabase

Kind = Literal["project", "session", "token", "workspace"]

LEAST: Final = 4
"""Minimum characters of a piece of an id, the kind's prefix not counted."""
SHOWN: Final = 10  # ids that an error names

_PREFIXES: Final[dict[Kind, str]] = {
    "project": f"{ids.PROJECT}_",
    "session": f"{ids.SESSION}_",
    "token": f"{ids.TOKEN}_",
    "workspace": "",
}
_BODY: Final = re.compile(r"[0-9a-z-]{1,36}")
_WHOLE: Final[dict[Kind, re.Pattern[str]]] = {
    kind: re.compile(
        prefix + (r"[0-9a-z]{26}" if prefix else r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    )
    for kind, prefix in _PREFIXES.items()
}


def whole_id(home: str | None, kind: Kind, given: str) -> str:
    """The whole id of an object named by a user.

    Args:
        home: the value of `--home`.
        kind: the kind of the object.
        given: a whole id, which is returned unchecked; the beginning or the end of one; for a
            project also its name.

    Raises:
        InvalidParameter: the text is no piece of an id, or several ids fit; names them.
        NotFound: no id fits.
    """
    if _WHOLE[kind].fullmatch(given):
        return given
    from oubliette.config.loader import find_home
    from oubliette.runtime.files.home import DATABASE
    from oubliette.runtime.store.id_search import ids_with, project_called

    path = find_home(home) / DATABASE
    found: list[str] = []
    piece = _piece(kind, given)
    if piece is None and kind != "project":
        raise _no_piece(kind, given)
    with reading(path) as connection:
        if kind == "project":
            found = project_called(connection, given)
        if piece is not None:
            more = ids_with(connection, kind, *piece)
            found += [each for each in more if each not in found]
    if piece is None and not found:
        raise _no_piece(kind, given)
    return the_one(kind, given, found)


def whole_scope(home: str | None, given: str) -> str:
    """The scope, with the id of its project: a user may give the project's name, or a part of it.

    Raises:
        InvalidParameter: as `whole_id`.
        NotFound: as `whole_id`.
    """
    kind, bound, project = given.partition(":")
    if kind != "project" or not bound:
        return given
    name = project.removesuffix(":ro")
    return f"project:{whole_id(home, 'project', name)}{project[len(name) :]}"


def fitting(kind: Kind, given: str, candidates: Iterable[str]) -> str:
    """Return the whole id among `candidates` instead of the home's; names do not count.

    Raises:
        InvalidParameter: the text is no piece of an id, or several fit.
        NotFound: no id fits.
    """
    if _WHOLE[kind].fullmatch(given):
        return given
    piece = _piece(kind, given)
    if piece is None:
        raise _no_piece(kind, given)
    beginning, end = piece
    fit = {
        each
        for each in candidates
        if each.startswith(beginning or "\0") or each.endswith(end or "\0")
    }
    return the_one(kind, given, sorted(fit))


def latest_session(home: str | None, project_id: str | None = None) -> str:
    """The id of the newest session that has no parent, of a project or of all.

    Raises:
        NotFound: there is none.
    """
    from oubliette.cli.client.calls import call

    cursor: str | None = None
    while True:
        wanted = {"project_id": project_id, "newest_first": True, "cursor": cursor}
        page = call(home, "session_list", wanted)
        for each in page["sessions"]:
            if each["parent_session_id"] is None:
                return str(each["session_id"])
        cursor = page["next_cursor"]
        if cursor is None:
            raise NotFound("there is no session to go on with", hint="start one: oubliette run '…'")


def the_one(kind: Kind, given: str, found: list[str]) -> str:
    """The only one of `found`.

    Raises:
        InvalidParameter: several ids fit.
        NotFound: no id fits.
    """
    if len(found) == 1:
        return found[0]
    if not found:
        hint = f"oubliette {kind} list" if kind != "workspace" else None
        named = ", and none has this name" if kind == "project" else ""
        raise NotFound(
            f"no {kind} has an id that begins or ends with {ids.shown(given)}{named}", hint=hint
        )
    rest = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise InvalidParameter(
        f"{ids.shown(given)} fits several: {', '.join(found[:SHOWN])}{rest}",
        field=kind,
        hint="give more of its beginning or end, or the whole id",
    )


@contextlib.contextmanager
def reading(path: Path) -> Generator[StoreConnection]:
    """Open a read-only connection to the database of a home, without a lock.

    Args:
        path: of the home's file, which is read unless the configuration names a database.

    Raises:
        NotFound: the database is missing.
        ConfigError: the file is no database of ours, or of a later release.
    """
    from oubliette.config.loader import load
    from oubliette.runtime.store.opening import open_database

    url = load(path.parent).config.store.database
    if not url and not path.exists():
        raise NotFound(f"{path.parent} has no database yet", hint="oubliette serve creates it")
    database = cast("StoreDatabase", open_database(url, path, read_only=True))
    connection = database.connect_read_only()
    try:
        yield connection
    finally:
        database.release(connection)


def _piece(kind: Kind, given: str) -> tuple[str, str] | None:
    """Return (beginning, end) of the ids that fit; None if it is no piece of one."""
    prefix = _PREFIXES[kind]
    text = given.lower()
    body = text.removeprefix(prefix) if prefix else text
    if len(body) < LEAST or not _BODY.fullmatch(body):
        return None
    # With the kind's prefix it can only be the beginning.
    return prefix + body, "" if prefix and text.startswith(prefix) else body


def _no_piece(kind: Kind, given: str) -> InvalidParameter:
    also = " or its name" if kind == "project" else ""
    return InvalidParameter(
        f"{ids.shown(given)} is no {kind}: give its id, {LEAST} or more characters of the beginning"
        f" or the end of it{also}",
        field=kind,
    )
