"""Caller, tools and permissions that a program provides under a name of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oubliette import ids
from oubliette.api.callers.caller_loop import Provided
from oubliette.api.callers.caller_loops import OpenedTools
from oubliette.api.callers.once_store import OnceStore
from oubliette.api.permissions import policy_of
from oubliette.api.tools.objects import listed_tools
from oubliette.errors import Conflict, InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.context import ClientContext


class Caller:
    """A caller: it answers the calls of all sessions that were started with it.

    Calls of durable tools wait for it. A program that opens a caller of the same id later, after a
    crash for example, gets those that are open. Made by `Oubliette.caller`.

    Use as an async context manager.

    Blocking:
        Use as a context manager.
    """

    def __init__(
        self,
        shared: ClientContext,
        caller_id: str,
        tools: Iterable[object],
        *,
        on_permission: OnPermission | None = None,
        once: str | Path | None = None,
    ) -> None:
        self.id: str = ids.check_caller_id(caller_id)
        """Id of the caller."""
        self._shared = shared
        self._given = listed_tools(tools)
        self._permissions = policy_of(on_permission)
        self._once = None if once is None else Path(once)
        self._tools = OpenedTools()
        self._opened = False

    async def __aenter__(self) -> Self:
        """Begin to answer, open requests first.

        Raises:
            BadTool: a tool cannot be offered.
            ConfigError: the file of answers cannot be used.
            Conflict: a caller of this id is open already.
        """
        self._shared.check()
        self._shared.loops.check_free(self.id)
        await self._tools.open(self._given)
        try:
            store = None
            if self._once is not None:
                store = await asyncio.to_thread(OnceStore, self._once)
            loop = self._shared.loops.open(self.id, store)
        except BaseException:
            await self._tools.aclose()
            raise
        loop.provide(None, Provided(self._tools.table, self._permissions))
        self._opened = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Answer no more calls; those that are carried out are cancelled."""
        self._opened = False
        await self._shared.loops.close(self.id)
        await self._tools.aclose()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the call that starts a session. For the package.

        Raises:
            Conflict: the caller's block has not begun, so its tools would not be answered.
        """
        if not self._opened:
            raise Conflict(
                f"the caller {self.id} is not open, so its tools would not be answered",
                hint=f"async with ob.caller({self.id!r}, tools) as caller: ... (sync: with)",
            )
        tools = [each.definition for each in self._tools.table.values()]
        return {"caller_id": self.id, "caller_tools": tools}


def check_caller(given: object) -> None:
    """Raise InvalidParameter unless `given` is a `Caller` or None.

    Raises:
        InvalidParameter: has the call that makes a caller as its hint.
    """
    if given is not None and not isinstance(given, Caller):
        raise InvalidParameter(
            f"caller: {given!r} is no caller",
            field="caller",
            hint="the object that ob.caller(ID, tools) returns, within its block",
        )
