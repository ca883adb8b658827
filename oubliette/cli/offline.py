"""Tools without a server: the same handlers, on the database itself, under the home's lock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.cli.control_client import RemoteError
from oubliette.config import load
from oubliette.control import OPERATOR
from oubliette.errors import NotFound
from oubliette.runtime import home as homes
from oubliette.tools.house import House
from oubliette.tools.keys import Keys
from oubliette.tools.table import call

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.kit import Ref
    from oubliette.runtime.store.ops import Op, Result

TOOLS: Final = frozenset(
    {
        "token_create",
        "token_list",
        "token_revoke",
        "project_list",
        "project_get",
        "session_list",
        "session_get",
        "session_events",
        "event_read",
        "workspace_list",
        "config_limits",
    }
)
"""Those that need no actor."""


def call_offline(home: Path, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool of `TOOLS`.

    Raises:
        HomeInUse: a server, or another command, has the home.
        NotFound: there is no home here yet (`token_create` makes one).
        RemoteError: what the tool answered.
    """
    if tool != "token_create" and not (home / homes.DATABASE).exists():
        raise NotFound(
            f"{home} has no database yet", hint="oubliette serve or token create makes it"
        )
    homes.prepare(home)
    with homes.HomeLock(home):
        return asyncio.run(_call(home, tool, arguments))


async def _call(home: Path, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from oubliette.clock import SystemClock
    from oubliette.runtime.audit import AuditLog
    from oubliette.runtime.store import Database, Reader, Writer

    config = load(home).config
    database = Database(home / homes.DATABASE, durability=config.store.durability)
    writer = Writer(database)
    reader = Reader(database, threads=1)
    audit = AuditLog(home, max_bytes=config.audit.max_file_mb << 20, files=config.audit.keep_files)
    writer.start()
    try:

        async def commit(ops: tuple[Op, ...]) -> Result:
            return await asyncio.wrap_future(writer.submit(ops))

        clock = SystemClock()
        keys = Keys(commit, reader, clock)
        await keys.load()
        nobody = cast("Ref", None)
        house = House(
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
        result = await call(house, OPERATOR, tool, arguments)
        await keys.aclose()
    finally:
        await asyncio.wrap_future(writer.close())
        await reader.aclose()
        database.close()
        await asyncio.to_thread(audit.close)
    if result.is_error:
        raise RemoteError(result.structured["error"])
    return result.structured
