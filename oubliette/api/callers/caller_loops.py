"""CallerLoops, the callers of one `Oubliette`: its own, and those that the program opens."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

from oubliette.api.callers.caller_loop import CallerLoop, Provided
from oubliette.api.owned_context import OwnedContext
from oubliette.api.permissions import PermissionRules, rules
from oubliette.api.tools import tool_table
from oubliette.api.tools.objects import listed_tools
from oubliette.api.tools.prepared import ToolSource
from oubliette.errors import Conflict, InvalidParameter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from oubliette.api.callers.once_store import OnceStore
    from oubliette.api.events.types import PermissionRequest
    from oubliette.api.shared import ClientShared
    from oubliette.api.tools.prepared import PreparedTool

OnPermission: TypeAlias = "PermissionRules | Callable[[PermissionRequest], object]"
"""Policy for permissions: `rules(…)`, or a function, async or not, that returns the decision."""


class Lending:
    """Tools and permission policy of one spawn or message, prepared before it is sent."""

    def __init__(
        self,
        loop: CallerLoop,
        tools: dict[str, PreparedTool] | None,
        permissions: PermissionRules | None,
    ) -> None:
        self._loop = loop
        self._tools = tools
        self._permissions = permissions

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the call that starts or continues the session."""
        found: dict[str, Any] = {"caller_id": self._loop.caller_id}
        if self._tools is not None:
            found["caller_tools"] = [each.definition for each in self._tools.values()]
        return found

    def taken_by(self, session_id: str, workspace_id: str | None) -> None:
        """Answer the requests of this session from now on, those that came before included."""
        provided = Provided(self._tools, self._permissions, workspace_id)
        self._loop.provide(session_id, provided)


class CallerLoops:
    """Callers of one `Oubliette`, by their ids."""

    def __init__(self, shared: ClientShared, own_id: str) -> None:
        self._shared = shared
        self._own_id = own_id
        self._loops: dict[str, CallerLoop] = {}
        self._sources: list[OwnedContext[Any]] = []

    async def prepare(
        self, tools: Iterable[object] | None, on_permission: OnPermission | None
    ) -> Lending | None:
        """Prepare tools and a policy for a session; None if there are neither.

        Raises:
            BadTool: a tool cannot be offered.
            InvalidParameter: the policy is none.
        """
        if tools is None and on_permission is None:
            return None
        table = None if tools is None else await self.table(tools)
        permissions = policy(on_permission)
        loop = self.open(self._own_id)
        return Lending(loop, table, permissions)

    async def table(self, tools: Iterable[object]) -> dict[str, PreparedTool]:
        """Return the tools by name; sources are opened until the end."""
        flat: list[object] = []
        for each in listed_tools(tools):
            if isinstance(each, ToolSource):
                context = OwnedContext(_opened(each), "tools of a source")
                flat += await context.enter()
                self._sources.append(context)
            else:
                flat.append(each)
        return tool_table(flat)

    def open(self, caller_id: str, once: OnceStore | None = None) -> CallerLoop:
        """Return the loop of a caller, which listens from now on.

        Raises:
            Conflict: it is open already with another store of answers.
        """
        loop = self._loops.get(caller_id)
        if loop is None:
            loop = self._loops[caller_id] = CallerLoop(self._shared, caller_id, once)
        elif once is not None:
            raise Conflict(
                f"the caller {caller_id} is open already", hint="open it once, or use another id"
            )
        loop.start()
        return loop

    async def close(self, caller_id: str) -> None:
        """Close one caller."""
        loop = self._loops.pop(caller_id, None)
        if loop is not None:
            await loop.aclose()

    def forget(self, session_id: str) -> None:
        """Provide nothing to this session any more."""
        for loop in self._loops.values():
            loop.forget(session_id)

    async def aclose(self) -> None:
        """Close all callers and sources."""
        for caller_id in list(self._loops):
            await self.close(caller_id)
        for source in reversed(self._sources):
            await source.leave()
        self._sources.clear()


def policy(given: OnPermission | None) -> PermissionRules | None:
    """Return the rules of an `on_permission`: rules, or a function of the request.

    Raises:
        InvalidParameter: it is neither.
    """
    if not (given is None or isinstance(given, PermissionRules) or callable(given)):
        raise InvalidParameter(
            f"on_permission is {given!r}",
            field="on_permission",
            hint="oubliette.rules(allow=[…], deny=[…]), or a function of the request",
        )
    if given is None or isinstance(given, PermissionRules):
        return given
    return rules(otherwise=given)


@contextlib.asynccontextmanager
async def _opened(source: ToolSource) -> AsyncGenerator[list[PreparedTool]]:
    async with contextlib.AsyncExitStack() as stack:
        yield await source.open(stack)
