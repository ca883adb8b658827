"""Answers to single requests of agents: a tool call, and a permission."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from oubliette.api.callers.once_transaction import OnceTransaction
from oubliette.api.tools.context import Call
from oubliette.api.tools.errors import ToolCallRefused
from oubliette.errors import DeadlineExceeded, NotFound, OublietteError, Unavailable
from oubliette.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from oubliette.api.callers.once_store import OnceStore
    from oubliette.api.connection import SystemConnection
    from oubliette.api.permissions import PermissionRules
    from oubliette.api.tools.prepared import PreparedTool
    from oubliette.contract.events import CallerToolRequest, PermissionRequest

MAX_PROGRESS: Final = 1000  # characters of one report
_log = logging.getLogger("oubliette.caller")


class CallAnswer:
    """Answer to one call of a tool of the program."""

    def __init__(
        self,
        connection: SystemConnection,
        request: CallerToolRequest,
        tools: Mapping[str, PreparedTool],
        once: OnceStore | None,
        start: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        """Prepare the answer.

        Args:
            connection: To the system.
            request: The call.
            tools: Tools by name.
            once: Answers that are kept.
            start: Starts a task that has an owner.
        """
        self._connection = connection
        self._start = start
        self._reporting: asyncio.Task[None] | None = None
        self._latest: str | None = None
        self._request = request
        self._tools = tools
        self._once = once
        self._abandoned = False
        """Whether the tool was given up, so that its thread may still run."""

    async def give(self) -> None:
        """Carry out the call, unless it was, and send its answer.

        Raises:
            OublietteError: the answer was not accepted.
        """
        request = self._request
        tool = self._tools.get(request.tool)
        if tool is None:
            answer = {"error": f"the program has no tool {request.tool} any more"}
        elif self._once is not None:
            answer = await self._once_only(tool, self._once)
        else:
            answer = await self._run(tool, None)
        failpoint("caller.before_answer")
        try:
            await _sent(
                self._connection,
                "caller_tool_response",
                {"session_id": request.session_id, "request_id": request.request_id, **answer},
            )
        except NotFound:
            # It was settled meanwhile: its deadline is over, or its agent does not wait any more.
            _log.info("the answer to %s came too late", request.request_id)
        failpoint("caller.after_answer")

    async def _once_only(self, tool: PreparedTool, once: OnceStore) -> dict[str, Any]:
        import sqlite3

        try:
            return await self._carried_out_once(tool, once)
        except sqlite3.Error as error:
            _log.exception("%s: %s", once.path, error)
            return {"error": f"{tool.name}: its result cannot be kept, and is undone: {error}"}

    async def _carried_out_once(self, tool: PreparedTool, once: OnceStore) -> dict[str, Any]:
        request_id = self._request.request_id
        kept = await asyncio.to_thread(once.answer, request_id)
        if kept is not None:
            return kept
        transaction = OnceTransaction(once)
        try:
            if tool.calls_on_loop:
                await transaction.take_turn()
            answer = await self._run(tool, transaction)
            return await transaction.keep(request_id, answer, abandoned=self._abandoned)
        finally:
            await transaction.end(abandoned=self._abandoned)

    async def _run(self, tool: PreparedTool, transaction: OnceTransaction | None) -> dict[str, Any]:
        request = self._request
        call = Call(
            session_id=request.session_id,
            request_id=request.request_id,
            ancestry=request.ancestry,
            deadline=request.deadline or None,
            on_progress=self._progress,
            transaction=transaction,
        )
        try:
            answer = {"result": await tool.run(request.arguments, call)}
        except ToolCallRefused as error:
            answer = {"error": error.message}
        finally:
            self._abandoned = call.cancelled
        if self._reporting is not None:
            await self._reporting  # progress is not taken once the call has its answer
        return answer

    def _progress(self, text: str) -> None:
        """Report progress, without a delay for the tool; what cannot be sent is only logged."""
        self._latest = text
        if self._reporting is None or self._reporting.done():
            self._reporting = self._start(self._report(), f"progress of {self._request.request_id}")

    async def _report(self) -> None:
        while self._latest is not None:
            text, self._latest = self._latest[:MAX_PROGRESS], None
            try:
                await self._connection.call(
                    "caller_tool_progress",
                    {
                        "session_id": self._request.session_id,
                        "request_id": self._request.request_id,
                        "message": text,
                    },
                )
            except OublietteError as error:
                _log.info("progress of %s was not reported: %s", self._request.tool, error)


class PermissionAnswer:
    """Answer to one permission request of an agent."""

    def __init__(self, connection: SystemConnection, request: PermissionRequest) -> None:
        self._connection = connection
        self._request = request

    async def give(self, permissions: PermissionRules, workspace: str) -> None:
        """Send the decision; without one the request is denied at its deadline.

        Raises:
            OublietteError: the answer was not accepted.
        """
        request = self._request
        try:
            decision = await permissions.decide(request, workspace=workspace)
        except Exception:
            _log.exception("the decision on %r failed: it is denied", request.text)
            decision = "deny"
        if decision is None:
            return
        try:
            await _sent(
                self._connection,
                "permission_response",
                {
                    "session_id": request.session_id,
                    "request_id": request.request_id,
                    "decision": decision,
                },
            )
        except NotFound:
            _log.info("the decision on %s came too late", request.request_id)


async def _sent(connection: SystemConnection, tool: str, arguments: dict[str, Any]) -> None:
    """Send an answer until it is taken: a program that runs is not asked a second time."""
    import tenacity

    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type((Unavailable, DeadlineExceeded)),
        wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=5.0),
    ):
        with attempt:
            await connection.call(tool, arguments)
