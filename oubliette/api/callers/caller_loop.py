"""CallerLoop, which answers the requests of the sessions that one caller has started.

It listens to the caller's events, runs the tools that agents call, and decides on their
permissions. A request that is delivered again while it is carried out, or after its answer was
accepted, is not carried out again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from oubliette.api.callers.request_answers import CallAnswer, PermissionAnswer
from oubliette.api.connection import POLL_SECONDS
from oubliette.api.event_iterator import whole
from oubliette.api.events.decoding import decode_event
from oubliette.contract.events import CallerToolRequest, CallerToolSettled, PermissionRequest
from oubliette.errors import Conflict, DeadlineExceeded, OublietteError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.api.callers.once_store import OnceStore
    from oubliette.api.permissions import PermissionRules
    from oubliette.api.shared import ClientShared
    from oubliette.api.tools.prepared import PreparedTool
    from oubliette.contract.events import Event

KEEP_ANSWERED: Final = 10_000  # requests that are known to be answered
SUPERSEDED: Final = "superseded"
REQUESTS: Final = frozenset({"caller_tool_request", "permission_request"})
_log = logging.getLogger("oubliette.caller")


class Provided:
    """Tools and permissions that a program provides to a session and its descendants."""

    def __init__(
        self,
        tools: Mapping[str, PreparedTool] | None,
        permissions: PermissionRules | None,
        workspace_id: str | None = None,
    ) -> None:
        self.tools = tools
        """None: those that were provided before."""
        self.permissions = permissions
        """None: those that were provided before."""
        self.workspace = f"/workspace/workspaces/{workspace_id}" if workspace_id else "/workspace"


class CallerLoop:
    """Listener of one caller, and the requests that it carries out."""

    def __init__(self, shared: ClientShared, caller_id: str, once: OnceStore | None = None) -> None:
        self.caller_id = caller_id
        self._shared = shared
        self._once = once
        self._for_all: Provided | None = None
        self._by_session: dict[str, Provided] = {}
        self._unclaimed: dict[str, Event] = {}
        """Requests of sessions that nothing is provided to yet, by their ids."""
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._cursor: int | None = None
        self._ended: str | None = None
        self._task: asyncio.Task[Any] | None = None

    # ------------------------------------------------------------------ what is provided

    def provide(self, session_id: str | None, provided: Provided) -> None:
        """Provide tools and permissions to a session, or with None to all of this caller."""
        before = self._for_all if session_id is None else self._by_session.get(session_id)
        if before is not None:
            provided.tools = before.tools if provided.tools is None else provided.tools
            provided.permissions = provided.permissions or before.permissions
        if session_id is None:
            self._for_all = provided
        else:
            self._by_session[session_id] = provided
        for request_id, event in list(self._unclaimed.items()):
            if self._provided(event) is not None:
                del self._unclaimed[request_id]
                self._take(event)

    def forget(self, session_id: str) -> None:
        """Provide nothing to a session any more, which has ended."""
        self._by_session.pop(session_id, None)

    def start(self) -> None:
        """Begin to listen, unless it does.

        Raises:
            Conflict: another program took over this caller_id.
        """
        if self._ended is not None:
            raise Conflict(
                f"the caller {self.caller_id} does not listen any more: {self._ended}",
                hint="give each program a caller_id of its own",
            )
        if self._task is None:
            self._task = self._shared.run(self._listen(), f"caller {self.caller_id}")
            self._task.add_done_callback(self._over)

    async def aclose(self) -> None:
        """Stop to listen, and cancel the calls that are carried out."""
        tasks = [*self._running.values(), *([self._task] if self._task is not None else [])]
        await self._shared.cancel(tasks)
        if self._once is not None:
            await asyncio.to_thread(self._once.close)

    # ------------------------------------------------------------------ events

    async def _listen(self) -> None:
        try:
            await self._listen_again_and_again()
        except Exception as error:  # agents would wait, unnoticed
            _log.exception("caller %s", self.caller_id)
            self._end(f"listening failed: {error!r}")

    async def _listen_again_and_again(self) -> None:
        import tenacity

        away = tenacity.retry_if_exception_type((Unavailable, DeadlineExceeded))
        while self._ended is None:
            async for attempt in tenacity.AsyncRetrying(
                retry=away,
                wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=5.0),
                before_sleep=self._log_retry,
            ):
                with attempt:
                    await self._listen_once()

    def _log_retry(self, state: Any) -> None:
        _log.warning("caller %s: %s", self.caller_id, state.outcome.exception())

    async def _listen_once(self) -> None:
        """Listen until the listener ends, or the connection fails after the first answer."""
        try:
            answered = False
            async with self._shared.connection.listener(
                self.caller_id, after=self._cursor
            ) as listener:
                while self._ended is None:
                    try:
                        events, ended = await listener.next(POLL_SECONDS)
                    except (Unavailable, DeadlineExceeded):
                        if answered:
                            return  # begins again at once, and without the delays so far
                        raise
                    answered = True
                    for event in events:
                        self._take(decode_event(event))
                    self._cursor = listener.cursor
                    if ended == SUPERSEDED:
                        self._end(f"another program listens as {self.caller_id}")
                    elif ended is not None:
                        return
        except (Unavailable, DeadlineExceeded):
            raise
        except OublietteError as error:
            self._end(str(error))

    def _over(self, task: asyncio.Task[Any]) -> None:
        """Report a defect of ours, by which agents would wait for answers that never come."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(f"it has failed: {error!r}")

    def _end(self, reason: str) -> None:
        self._ended = reason
        _log.error("the caller %s does not listen any more: %s", self.caller_id, reason)

    def _take(self, event: Event) -> None:
        kept: dict[str, Any] = getattr(event, "data", {})
        request_id: str = getattr(event, "request_id", "") or str(kept.get("request_id") or "")
        if not request_id:
            return
        if event.type in {"caller_tool_settled", "permission_settled"}:
            self._settled(event, request_id)
        elif event.type not in REQUESTS or self._is_known(request_id):
            return
        elif self._provided(event) is None:
            self._unclaimed[request_id] = event
        else:
            work = self._shared.run(self._carry_out(event), f"request {request_id}")
            self._running[request_id] = work
            work.add_done_callback(lambda _: self._running.pop(request_id, None))

    def _is_known(self, request_id: str) -> bool:
        return request_id in self._answered or request_id in self._running

    def _settled(self, event: Event, request_id: str) -> None:
        """Cancel a call whose result is no longer awaited."""
        self._unclaimed.pop(request_id, None)
        running = self._running.get(request_id)
        if (
            running is not None
            and isinstance(event, CallerToolSettled)
            and event.outcome in {"timeout", "cancelled", "caller_gone"}
        ):
            running.cancel()

    # ------------------------------------------------------------------ requests

    def _provided(self, event: Event) -> Provided | None:
        """Return what is provided to the nearest session above this one, this one included."""
        kept: dict[str, Any] = getattr(event, "data", {})
        ancestry: tuple[str, ...] = getattr(event, "ancestry", ()) or tuple(
            kept.get("ancestry") or ()
        )
        for session_id in (event.session_id, *reversed(ancestry)):
            found = self._by_session.get(session_id)
            if found is not None:
                return found
        return self._for_all

    async def _carry_out(self, event: Event) -> None:
        try:
            request = await whole(self._shared.connection, event)
            provided = self._provided(request)
            if isinstance(request, CallerToolRequest) and provided is not None:
                tools = provided.tools or {}
                answer = CallAnswer(
                    self._shared.connection, request, tools, self._once, self._shared.run
                )
                await answer.give()
            elif isinstance(request, PermissionRequest) and provided is not None:
                if provided.permissions is None:
                    return
                await PermissionAnswer(self._shared.connection, request).give(
                    provided.permissions, provided.workspace
                )
            else:
                return
            self._remember(request.request_id)
        except OublietteError as error:
            _log.warning("no answer to a request of %s: %s", event.session_id, error)
        except Exception:
            _log.exception("no answer to a request of %s", event.session_id)

    def _remember(self, request_id: str) -> None:
        self._answered[request_id] = None
        if len(self._answered) > KEEP_ANSWERED:
            self._answered.popitem(last=False)
