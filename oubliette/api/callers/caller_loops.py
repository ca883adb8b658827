"""CallerLoops, the callers of one `Oubliette`: its own, and those that the program opens."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from oubliette.api.callers.caller_loop import CallerLoop, Provided
from oubliette.api.owned_context import OwnedContext
from oubliette.api.permissions import PermissionRules, policy_of
from oubliette.api.tools import opened_table, tool_table
from oubliette.api.tools.objects import listed_tools
from oubliette.api.tools.prepared import ToolSource
from oubliette.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from oubliette.api.callers.once_store import OnceStore
    from oubliette.api.shared import ClientShared
    from oubliette.api.tools.prepared import PreparedTool
    from oubliette.contract.events import PermissionRequest

OnPermission: TypeAlias = "PermissionRules | Callable[[PermissionRequest], object]"
"""Policy for permissions: `rules(…)`, or a function, async or not, that returns the decision."""


class LoopLease:
    """Tools and permission policy of one spawn or message, prepared before it is sent."""

    def __init__(
        self,
        loops: CallerLoops,
        loop: CallerLoop,
        tools: OpenedTools | None,
        permissions: PermissionRules | None,
    ) -> None:
        self._loops = loops
        self._loop = loop
        self._tools = tools
        self._permissions = permissions

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the call that starts or continues the session."""
        found: dict[str, Any] = {"caller_id": self._loop.caller_id}
        if self._tools is not None:
            found["caller_tools"] = [each.definition for each in self._tools.table.values()]
        return found

    def add(self, session_id: str, workspace_id: str | None) -> None:
        """Answer the requests of this session from now on, those that came before included."""
        table = None if self._tools is None else self._tools.table
        self._loop.provide(session_id, Provided(table, self._permissions, workspace_id))
        if self._tools is not None:
            self._loops.hold(session_id, self._tools)

    async def release(self) -> None:
        """Close what was opened for a session that was not started."""
        if self._tools is not None:
            await self._tools.aclose()


class OpenedTools:
    """Tools by name, and the sources that some of them come from."""

    def __init__(self) -> None:
        self.table: dict[str, PreparedTool] = {}
        self._sources: OwnedContext[dict[str, PreparedTool]] | None = None

    async def open(self, tools: Iterable[object]) -> Self:
        """Open the sources, and prepare all tools.

        Raises:
            BadTool: a tool cannot be offered.
        """
        given = listed_tools(tools)
        if not any(isinstance(each, ToolSource) for each in given):
            self.table = tool_table(given)
            return self
        sources = OwnedContext(_opened(given), "sources of tools")
        self.table = await sources.enter()
        self._sources = sources
        return self

    async def aclose(self) -> None:
        """Close the sources."""
        sources, self._sources = self._sources, None
        if sources is not None:
            await sources.leave()


class CallerLoops:
    """Callers of one `Oubliette`, by their ids."""

    def __init__(self, shared: ClientShared, own_id: str) -> None:
        self._shared = shared
        self._own_id = own_id
        self._loops: dict[str, CallerLoop] = {}
        self._held: dict[str, OpenedTools] = {}
        """Tools of sessions, by the sessions' ids."""

    async def prepare(
        self, tools: Iterable[object] | None, on_permission: OnPermission | None
    ) -> LoopLease | None:
        """Prepare tools and a policy for a session; None if there are neither.

        Raises:
            BadTool: a tool cannot be offered.
            InvalidParameter: the policy is none.
        """
        if tools is None and on_permission is None:
            return None
        permissions = policy_of(on_permission)
        loop = self._own()
        opened = None if tools is None else await OpenedTools().open(tools)
        return LoopLease(self, loop, opened, permissions)

    def hold(self, session_id: str, tools: OpenedTools) -> None:
        """Keep the tools of a session open until it has ended, or gets others."""
        self._let_go(session_id)
        self._held[session_id] = tools

    def _let_go(self, session_id: str) -> None:
        before = self._held.pop(session_id, None)
        if before is not None:
            self._shared.run(before.aclose(), f"end of the tools of {session_id}")

    def _own(self) -> CallerLoop:
        loop = self._loops.get(self._own_id)
        if loop is None:
            loop = self._loops[self._own_id] = CallerLoop(self._shared, self._own_id)
        loop.start()
        return loop

    def open(self, caller_id: str, once: OnceStore | None = None) -> CallerLoop:
        """Return the loop of a caller, which listens from now on.

        Raises:
            Conflict: this caller is open already.
        """
        self.check_free(caller_id)
        loop = self._loops[caller_id] = CallerLoop(self._shared, caller_id, once)
        loop.start()
        return loop

    def check_free(self, caller_id: str) -> None:
        """Check that no caller has this id.

        Raises:
            Conflict: one has; or it is the id under which this program provides other tools.
        """
        if caller_id in self._loops or caller_id == self._own_id:
            raise Conflict(
                f"the caller {caller_id} is open already", hint="open it once, or use another id"
            )

    async def close(self, caller_id: str) -> None:
        """Close one caller."""
        loop = self._loops.pop(caller_id, None)
        if loop is not None:
            await loop.aclose()

    def forget(self, session_id: str) -> None:
        """Provide nothing to this session any more."""
        for loop in self._loops.values():
            loop.forget(session_id)
        self._let_go(session_id)

    async def aclose(self) -> None:
        """Close all callers and tools."""
        for caller_id in list(self._loops):
            await self.close(caller_id)
        while self._held:
            _, tools = self._held.popitem()
            await tools.aclose()


@contextlib.asynccontextmanager
async def _opened(tools: list[object]) -> AsyncGenerator[dict[str, PreparedTool]]:
    async with contextlib.AsyncExitStack() as stack:
        yield await opened_table(tools, stack)
