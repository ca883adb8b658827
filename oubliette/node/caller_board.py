"""SharedCallerBoard, the state of callers that the nodes share, in the table of listeners."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

import structlog

from oubliette.actors.caller.messages import CallerChanged, CallersUnknown
from oubliette.actors.caller_board import SharedCaller
from oubliette.errors import StorageUnavailable
from oubliette.kit import MailboxFull
from oubliette.records import CallerTool
from oubliette.runtime.store.codec import decode, encode
from oubliette.runtime.store.postgres.cluster import listener_rows
from oubliette.runtime.store.postgres.cluster.nodes import LEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oubliette.kit import Message, Ref, System
    from oubliette.runtime.store.postgres.cluster.node_records import ListenerRow
    from oubliette.runtime.store.postgres.control_thread import Connection, ControlThread
    from oubliette.runtime.store.postgres.fence import NodeFence
    from oubliette.runtime.store.postgres.notices import Notices

ANSWER_SECONDS: Final = 3.0
"""Time for the database to answer; the caller's actor goes on without it then."""
UNSURE_SECONDS: Final = LEASE_SECONDS
"""Time after an outage in which the nodes renew their leases and write signs of life again."""
_CALLERS: Final = "callers"

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = structlog.get_logger("oubliette.callers")


class SharedCallerBoard:
    """The `CallerBoard` of a node. `start` it, on the loop of the actors.

    It needs no end: it does nothing more once the notices are closed.

    Args:
        control: Connection of the node to the tables of the cluster.
        notices: Of the same database.
        fence: Epoch of the node.
        system: System of the node's actors.
        unsteady: Returns the seconds for which the ends of other nodes' leases prove nothing.
    """

    def __init__(
        self,
        control: ControlThread,
        notices: Notices,
        fence: NodeFence,
        system: System,
        *,
        unsteady: Callable[[], float],
    ) -> None:
        self._control = control
        self._notices = notices
        self._fence = fence
        self._system = system
        self._unsteady = unsteady
        self._connected = False
        self._sure_at = -math.inf
        """Monotonic second from which on the rows of other nodes are as they should be."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._notices.follow(
            listener_rows.CHANNEL,
            lambda payload: self._on_loop(self._changed, payload),
            lambda: self._on_loop(self._unknown),
        )

    @property
    def node(self) -> str:
        return self._fence.node

    @property
    def unsure_seconds(self) -> float:
        """Time for which no caller may be taken for absent by the rows; see `CallerBoard`."""
        # A question may have waited for a database that hung, and be answered by it at once when
        # it goes on: before any node could renew its lease.
        return max(0.0, self._sure_at - time.monotonic(), self._unsteady())

    # ------------------------------------------------------------ questions
    async def projects(self, principal: str, caller_id: str) -> list[str]:
        return await self._ask(listener_rows.projects_of, principal, caller_id)

    async def read(self, principal: str, caller_id: str, project: str) -> SharedCaller | None:
        row = await self._ask(listener_rows.listener_of, principal, caller_id, project)
        return None if row is None else _shared(row)

    async def open(
        self,
        principal: str,
        caller_id: str,
        project: str,
        *,
        grace: float,
        tools: Sequence[CallerTool] | None,
        delivered: int,
        head: int,
    ) -> SharedCaller:
        """Record a new provider on this node; see `CallerBoard`.

        Raises:
            StaleNode: the epoch of this node has ended.
            StorageUnavailable: the database does not answer.
        """
        row = await self._ask(
            listener_rows.open_provider,
            principal,
            caller_id,
            self._fence,
            project=project,
            grace=grace,
            tools=_text(tools),
            delivered=delivered,
            head=head,
        )
        return _shared(row)

    async def release(
        self,
        principal: str,
        caller_id: str,
        project: str,
        generation: int,
        *,
        seconds: float,
        reason: str,
        delivered: int,
    ) -> SharedCaller | None:
        """Record that a provider of this node has ended; see `CallerBoard`."""
        row = await self._ask(
            listener_rows.release_provider,
            principal,
            caller_id,
            generation,
            project=project,
            seconds=seconds,
            reason=reason,
            delivered=delivered,
        )
        return None if row is None else _shared(row)

    async def note(
        self,
        principal: str,
        caller_id: str,
        project: str,
        *,
        seconds: float,
        reason: str,
        tools: Sequence[CallerTool] | None,
    ) -> SharedCaller:
        """Record a sign of life, or the tools of a caller, or both; see `CallerBoard`."""
        row = await self._ask(
            listener_rows.note_caller,
            principal,
            caller_id,
            self._fence.node,
            project=project,
            seconds=seconds,
            reason=reason,
            tools=_text(tools),
        )
        return _shared(row)

    async def _ask(
        self,
        function: Callable[Concatenate[Connection, _P], _T],
        *args: _P.args,
        **options: _P.kwargs,
    ) -> _T:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._control.run(function, *args, **options)
        except StorageUnavailable:
            self._was_away()
            raise
        except TimeoutError:
            self._was_away()
            raise StorageUnavailable(
                f"the database has not answered for {ANSWER_SECONDS:g} s"
            ) from None

    def _was_away(self) -> None:
        """Note that the database is away, or was until now, to the other nodes as well."""
        self._sure_at = time.monotonic() + UNSURE_SECONDS

    # ------------------------------------------------------------ notices
    def _on_loop(self, function: Callable[..., None], *args: str) -> None:
        """Call on the loop; called on the thread of the notices."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no actor left
            self._loop.call_soon_threadsafe(function, *args)

    def _changed(self, payload: str) -> None:
        change, project, key = payload.split(" ", 2)
        ref = self._system.lookup(f"{_CALLERS}/{key}")
        if ref is not None:  # another one reads the state when it starts
            _tell(ref, CallerChanged(change=int(change), project_id=project or None))

    def _unknown(self) -> None:
        if self._connected:  # not for the first time: it was away
            self._was_away()
        self._connected = True
        ref = self._system.lookup(_CALLERS)
        if ref is not None:
            _tell(ref, CallersUnknown())


def _tell(ref: Ref, message: Message) -> None:
    try:
        ref.tell(message)
    except MailboxFull:
        _log.warning("change of a caller not told", to=ref.name)


def _text(tools: Sequence[CallerTool] | None) -> str | None:
    return None if tools is None else encode(tools).decode()


def _shared(row: ListenerRow) -> SharedCaller:
    return SharedCaller(
        node=row.node,
        generation=row.generation,
        change=row.change,
        held=row.held,
        seconds=row.seconds,
        reason=row.reason,
        tools=None if row.tools is None else decode(tuple[CallerTool, ...], row.tools.encode()),
        delivered=row.delivered,
    )
