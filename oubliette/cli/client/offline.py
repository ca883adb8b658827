"""Tools without a server: the same handlers, on the database itself.

Reading needs no lock, writing needs the home's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from oubliette import ids
from oubliette.api.errors import from_wire
from oubliette.clock import SystemClock
from oubliette.config.loader import load
from oubliette.errors import ConfigError, Conflict, NotFound, Unavailable
from oubliette.runtime.audit_log import AuditLog
from oubliette.runtime.files import home as homes
from oubliette.runtime.files.instance import INSTANCE, PLACE
from oubliette.runtime.store import Database, Reader, Writer
from oubliette.runtime.store.migrations import MIGRATIONS, POSTGRES_MIGRATIONS, released
from oubliette.runtime.store.opening import open_database
from oubliette.runtime.store.operations import DeleteContainer, PutMeta, RevokeToken
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.registry import call
from oubliette.tools.services import ToolServices
from oubliette.tools.spec import OPERATOR

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.kit import Ref
    from oubliette.runtime.store.operations import Op, Result
    from oubliette.runtime.store.postgres.database import PostgresDatabase


def read_offline(home: Path, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool that only reads, without the home's lock.

    Raises:
        OutOfDate: the database is of an earlier release, or empty.
        NotFound: the database is missing.
        OublietteError: the tool failed; of the class of its code.
    """
    _check(home)
    database = _opened(home, read_only=True)
    package = MIGRATIONS if isinstance(database, Database) else POSTGRES_MIGRATIONS
    if database.version < released(package)[-1].version:
        raise OutOfDate(f"the database of {home} has schema {database.version}")
    return asyncio.run(_call(home, database, tool, arguments, read_only=True))


def call_offline(home: Path, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool that needs no actor, under the home's lock.

    Raises:
        HomeInUse: a server, or another command, holds the lock.
        NotFound: the home does not exist yet (`token_create` creates one).
        OublietteError: the tool failed; of the class of its code.
    """
    _check(home, makes=tool == "token_create")
    with homes.HomeLock(home):
        return call_locked(home, tool, arguments)


def call_locked(home: Path, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call as `call_offline` does, for a caller that holds the home's lock."""
    _check(home, makes=tool == "token_create")
    database = _opened(home)
    return asyncio.run(_call(home, database, tool, arguments, read_only=False))


async def take_identity(home: Path, *, force: bool) -> str:
    """Give a home a new identity, and remove the containers of the old one; return the new id.

    Args:
        home: The home.
        force: Whether it may be the original, whose containers no server would know afterwards.

    Raises:
        HomeInUse: a server, or another command, holds the lock.
        NotFound: the home does not exist.
        Conflict: it is the original, and has containers that run.
    """
    _check(home)
    instance, place = ids.new_id(ids.INSTANCE), str(home.resolve())  # noqa: ASYNC240 -- no server
    with homes.HomeLock(home):
        database = _opened(home)
        reader, writer = Reader(database, threads=1), Writer(database)
        writer.start()
        try:
            if not force and await reader.meta(PLACE) == place:
                await _check_no_loss(reader, home)
            ops: list[Op] = [PutMeta(INSTANCE, instance), PutMeta(PLACE, place)]
            ops += [DeleteContainer(record.id) for record in await reader.containers()]
            await asyncio.wrap_future(writer.submit(tuple(ops)))
        finally:
            await asyncio.wrap_future(writer.close())
            await reader.aclose()
            database.close()
    return instance


async def _check_no_loss(reader: Reader, home: Path) -> None:
    """Check that an original has no containers that its next server would take over."""
    running = [each for each in await reader.containers() if each.state in {"creating", "running"}]
    if not running:
        return
    projects = {each.project_id for each in running}
    sessions = [each for each in await reader.live_sessions() if each.project_id in projects]
    raise Conflict(
        f"{home} is no copy: it is where its server has used it last. Lost would be its containers"
        f" that run ({len(running)}), and the work of the live sessions in them ({len(sessions)}),"
        " which the next server would take over",
        hint=f"for a copy, give --home COPY; oubliette home adopt --force --home {home} does it"
        " nevertheless",
    )


class OutOfDate(ConfigError):
    """The database must be migrated before this release can read it."""


def _opened(home: Path, *, read_only: bool = False) -> Database | PostgresDatabase:
    store = load(home).config.store
    path = home / homes.DATABASE
    return open_database(store.database, path, durability=store.durability, read_only=read_only)


def _check(home: Path, *, makes: bool = False) -> None:
    there = (home / homes.DATABASE).exists() or load(home).config.store.database
    if not makes and not there:
        raise NotFound(
            f"{home} has no database yet",
            hint="oubliette serve and oubliette token create create it",
        )
    homes.prepare(home)


async def _call(
    home: Path,
    database: Database | PostgresDatabase,
    tool: str,
    arguments: dict[str, Any],
    *,
    read_only: bool,
) -> dict[str, Any]:
    config = load(home).config
    writer = None if read_only else Writer(database)
    reader = Reader(database, threads=1)
    # Only the lock's holder may create a file: a server may be writing this one.
    most = 0 if read_only else config.audit.max_file_mb << 20
    audit = AuditLog(home, max_bytes=most, files=config.audit.keep_files)
    if writer is not None:
        writer.start()
    try:

        async def commit(ops: tuple[Op, ...]) -> Result:
            if writer is not None:
                return await asyncio.wrap_future(writer.submit(ops))
            if all(isinstance(op, RevokeToken) for op in ops):
                return ()  # of sessions that have ended; the next server writes it
            raise Unavailable(f"{tool} writes, which needs the home's lock")

        clock = SystemClock()
        keys = ApiKeys(commit, reader, clock)
        await keys.load()
        nobody = cast("Ref", None)
        services = ToolServices(
            config=config,
            clock=clock,
            reader=reader,
            commit=commit,
            keys=keys,
            projects=nobody,
            callers=nobody,
            find_session=lambda _: None,
            find_actor=lambda _: None,
            name_actor=lambda _: nobody,
            audit=audit,
        )
        result = await call(services, OPERATOR, tool, arguments)
        await keys.aclose()
    finally:
        if writer is not None:
            await asyncio.wrap_future(writer.close())
        await reader.aclose()
        database.close()
        await asyncio.to_thread(audit.close)
    if result.is_error:
        raise from_wire(result.structured["error"])
    return result.structured
