"""Command `oubliette store migrate`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.terminal.output import Format, Home, Output, note, print_json

if TYPE_CHECKING:
    from pathlib import Path

CLOSED_SECONDS: Final = 3.0
"""Time for which a connection to PostgreSQL may be shown after it was closed."""

app = typer.Typer(help="The database of a server.", no_args_is_help=True)


@app.command("migrate")
def migrate(
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="The database to fill, which must be empty: postgresql://HOST/NAME, or"
            " sqlite:FOLDER for the file in a folder.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The database to copy, as --to; unset: the file in the home.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Copy a server's database into an empty one, and compare both before the copy counts.

    No server may run on either. Ids, logs and cursors stay as they are, so clients notice nothing.
    The folders of projects stay where they are.
    """
    from oubliette.cli.terminal import logging_config, progress
    from oubliette.config.loader import find_home
    from oubliette.runtime.store import transfer

    logging_config.configure("warning", as_json=output is Format.json)
    with ExitStack() as stack:
        place = source or f"sqlite:{find_home(home)}"
        reading = _opened(place, "--from", stack, writes=False)
        writing = _opened(target, "--to", stack, writes=True)
        with progress.shown("migrate") as report:
            done = transfer.copy(reading, writing, report)
    if output is Format.json:
        print_json({"rows": done.rows, "logs": done.logs})
        return
    rows = sum(done.rows.values())
    note(f"{rows} rows and {done.logs} logs were copied; both databases have the same contents.")


def _opened(address: str, option: str, stack: ExitStack, *, writes: bool) -> Any:

    from oubliette.errors import InvalidParameter
    from oubliette.user_paths import expanded

    kind, _, rest = address.partition(":")
    if kind in {"postgresql", "postgres"}:
        return _postgres(address, option, stack, writes=writes)
    if kind == "sqlite" and rest:
        return _sqlite(expanded(rest, option), option, stack, writes=writes)
    # It is not quoted: any form that a driver understands may hold a password.
    raise InvalidParameter(
        f"{option}: this is no database; give sqlite:FOLDER or postgresql://HOST/NAME",
        field=option,
    )


def _sqlite(home: Path, option: str, stack: ExitStack, *, writes: bool) -> Any:
    from oubliette.errors import NotFound
    from oubliette.runtime.files import home as homes
    from oubliette.runtime.store import Database

    if not writes and not (home / homes.DATABASE).exists():
        raise NotFound(f"{option}: {home} has no database", hint="give the folder of a server")
    homes.prepare(home)
    stack.enter_context(homes.HomeLock(home))
    database = Database(home / homes.DATABASE)
    connection = database.connect() if writes else database.connect_read_only()
    stack.callback(database.release, connection)
    return connection


def _postgres(url: str, option: str, stack: ExitStack, *, writes: bool) -> Any:
    from pathlib import Path

    import tenacity

    from oubliette.errors import ConfigError, Conflict
    from oubliette.runtime.store import Database
    from oubliette.runtime.store.opening import open_database

    try:
        database = open_database(url, Path())
    except ConfigError as error:
        error.message = error.message.replace("store.database", option, 1)
        raise
    assert not isinstance(database, Database)
    connection = database.connect() if writes else database.connect_read_only()
    stack.callback(database.release, connection)

    def others() -> int:
        (count,) = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = ? AND pid <> pg_backend_pid()",
            (database.application_name,),
        ).fetchone()
        return count

    # PostgreSQL shows a connection for a moment after it was closed, and gives no notice of its end
    again = tenacity.Retrying(
        retry=tenacity.retry_if_result(bool),
        wait=tenacity.wait_fixed(0.1),
        stop=tenacity.stop_after_delay(CLOSED_SECONDS),
        retry_error_callback=lambda _: 1,
    )
    if again(others):
        raise Conflict(f"{option}: a server uses {database.shown}", hint="stop it, then try again")
    return connection
