"""Command `oubliette audit`: the log of tool calls. It reads the files and needs no server."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from oubliette.cli.client.resolver import fitting, reading, the_one
from oubliette.cli.terminal.output import Format, Home, Output, moment, print_json, print_table
from oubliette.cli.terminal.times import SINCE
from oubliette.errors import InvalidParameter, NotFound, OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from oubliette.runtime.audit_log import AuditEntry


def audit(  # noqa: PLR0917 - one parameter per option
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=1, help="Number of calls, counted from the end.")
    ] = 100,
    since: Annotated[float | None, SINCE] = None,
    principal: Annotated[str | None, typer.Option(help="Only calls by this principal.")] = None,
    token_id: Annotated[
        str | None, typer.Option("--token-id", help="Only calls with this key.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Only calls by or about this session.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Only calls about this project.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only calls that were refused or failed.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show the calls of tools and their outcomes, newest last. Ids may be abbreviated."""
    from oubliette.config.loader import find_home
    from oubliette.runtime.audit_log import FILE_NAME, read

    folder = find_home(home)
    if not (folder / FILE_NAME).exists():
        raise NotFound(
            f"{folder} has no audit log yet", hint="oubliette serve writes it, with each call"
        )

    try:
        token_id, session, project = _whole(folder, token_id, session, project)
    except PermissionError as error:
        raise _not_yours(error) from error

    def wanted(entry: AuditEntry) -> bool:
        return (
            entry.ts >= (since or 0.0)
            and principal in {None, entry.principal}
            and token_id in {None, entry.token_id}
            and session in {None, entry.session_id, entry.target_session_id}
            and project in {None, entry.project_id}
            and tool in {None, entry.tool}
            and not (failed and entry.outcome == "ok")
        )

    try:
        found = deque((entry for entry in read(folder) if wanted(entry)), maxlen=tail)
    except PermissionError as error:
        raise _not_yours(error) from error
    _show(found, _names(folder), output)


def _show(
    found: Iterable[AuditEntry], names: tuple[dict[str, str], dict[str, str]], output: Format
) -> None:
    keys, projects = names
    if output is Format.json:
        import msgspec

        for entry in found:
            print_json(
                {
                    **msgspec.to_builtins(entry),
                    "token_name": keys.get(entry.token_id),
                    "project_name": projects.get(entry.project_id or ""),
                }
            )
        return
    print_table(
        (
            *("WHEN", "PRINCIPAL", "KEY", "KEY NAME", "TRANSPORT", "SESSION", "TOOL"),
            *("PROJECT", "PROJECT NAME", "OUTCOME", "MS"),
        ),
        [
            (
                moment(entry.ts),
                entry.principal,
                entry.token_id,
                keys.get(entry.token_id, ""),
                entry.transport,
                entry.session_id or entry.target_session_id or "",
                entry.tool,
                entry.project_id or "",
                projects.get(entry.project_id or "", ""),
                entry.outcome,
                f"{entry.seconds * 1000:.1f}",
            )
            for entry in found
        ],
    )


def _whole(
    folder: Path, token_id: str | None, session: str | None, project: str | None
) -> tuple[str | None, str | None, str | None]:
    """Return whole ids for abbreviated ones, from the log, which outlives the records."""
    from oubliette.runtime.audit_log import read

    if token_id == session == project is None:
        return None, None, None
    tokens: set[str] = set()
    sessions: set[str] = set()
    projects: set[str] = set()
    for entry in read(folder):
        tokens.add(entry.token_id)
        sessions.update(each for each in (entry.session_id, entry.target_session_id) if each)
        projects.update((entry.project_id,) if entry.project_id else ())
    if token_id is not None and token_id not in tokens:
        token_id = fitting("token", token_id, tokens)
    if session is not None and session not in sessions:
        session = fitting("session", session, sessions)
    if project is not None and project not in projects:
        _, names = _names(folder)
        called = [each for each, name in names.items() if name == project and each in projects]
        project = (
            the_one("project", project, called) if called else fitting("project", project, projects)
        )
    return token_id, session, project


def _names(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the current names of keys and projects by id; empty if there is no database."""
    from oubliette.runtime.files.home import DATABASE
    from oubliette.runtime.store.id_search import project_names, token_names

    try:
        with reading(folder / DATABASE) as connection:
            return token_names(connection), project_names(connection)
    except OublietteError:  # the log can be shown all the same
        return {}, {}


def _not_yours(error: PermissionError) -> InvalidParameter:
    return InvalidParameter(
        f"{error.filename} is not readable by this user", hint="run it as the server's user"
    )
