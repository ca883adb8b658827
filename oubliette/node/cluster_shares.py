"""ClusterShares, which takes this node's shares of limits from the database that all nodes share.

One task settles all that has come up since it last did, in one transaction, so a call costs none by
itself. What a node does not use it gives back after some seconds, or at once when another one needs
it. While the database is away, the node goes on with what it has, and with its part of the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.errors import StaleNode, StorageUnavailable
from oubliette.node.share import REFUSE_SECONDS, Share
from oubliette.runtime.store.postgres.cluster import limit_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oubliette.actors.shares import ShareLimit
    from oubliette.runtime.store.postgres.cluster.limit_shares import ShareGrant, ShareStatement
    from oubliette.runtime.store.postgres.control_thread import ControlThread
    from oubliette.runtime.store.postgres.fence import NodeFence
    from oubliette.runtime.store.postgres.notices import Notices

HOLD_SECONDS: Final = 0.5
"""Time for which a call waits: for the database, and for other nodes to give back."""
IDLE_SECONDS: Final = 5.0
"""Time after which units that were not used in it are given back."""
AGAIN_SECONDS: Final = 1.0
"""Time after which a database that was away is asked again."""
FORGET_SECONDS: Final = 60.0
"""Time between two looks for pools of which nothing has to be remembered."""
CLOSE_SECONDS: Final = 2.0
"""Time for giving all back at the end."""

log = structlog.get_logger("oubliette.node")


class _Scope:
    """A share, with the calls that wait for a unit of it, in order."""

    __slots__ = ("queue", "share")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.queue: deque[asyncio.Future[float | None]] = deque()

    def wait(self) -> asyncio.Future[float | None]:
        future: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        self.queue.append(future)
        self.share.waiting += 1
        return future

    def leave(self, future: asyncio.Future[float | None]) -> None:
        """End to wait; no effect if it was answered."""
        with contextlib.suppress(ValueError):
            self.queue.remove(future)
            self.share.waiting -= 1
        if not self.queue:
            self.share.recalling = 0

    def admit(self, take: Callable[[], bool]) -> None:
        """Let those through for which there is a unit."""
        while self.queue:
            first = self.queue[0]
            if not first.done():  # otherwise it was cancelled, and has not left yet
                if not take():
                    return
                first.set_result(None)
            self.leave(first)

    def refuse(self, calls: Iterable[asyncio.Future[float | None]], seconds: float) -> None:
        """Refuse those of the calls that still wait."""
        for each in calls:
            if not each.done():
                self.leave(each)
                each.set_result(seconds)


class ClusterShares:
    """Shares of one epoch of a node: `start` it, and `aclose` it at the end.

    Args:
        control: Connection to the cluster's tables; runs from `start` to `aclose`.
        notices: Of the same database.
        fence: The epoch.
    """

    def __init__(self, control: ControlThread, notices: Notices, fence: NodeFence) -> None:
        self._control = control
        self._notices = notices
        self._fence = fence
        self._scopes: dict[str, _Scope] = {}
        self._due: dict[str, int] = {}
        """Scopes to settle, each with the units that are to be given back."""
        self._nodes = 1
        """Nodes as of the latest answer."""
        self._away = False
        """Whether the database did not answer when it was last asked."""
        self._more = asyncio.Event()
        self._end = asyncio.Event()
        """Set when nothing is to be settled any more."""
        self._task: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self._forget_at = 0.0

    async def start(self) -> None:
        """Begin to settle; call it on the loop of those that take units.

        Raises:
            StorageUnavailable: the database does not answer.
        """
        self._nodes = await self._control.run(limit_shares.count_nodes)
        self._loop = asyncio.get_running_loop()
        self._look_at = self._loop.time() + IDLE_SECONDS
        self._forget_at = self._loop.time() + FORGET_SECONDS
        self._notices.follow(limit_shares.CHANNEL, self._notified, lambda: None)
        self._task = asyncio.create_task(self._settle_all(), name="shares of limits")

    async def aclose(self) -> None:
        """Give all back, if the database answers in time."""
        if self._task is None:
            return
        self._end.set()
        self._more.set()
        with contextlib.suppress(TimeoutError, StorageUnavailable):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.shield(self._task)
                await self._control.run(limit_shares.release, self._fence)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._decide_alone()

    # ------------------------------------------------------------------ the port

    async def take(self, scope: str, limit: ShareLimit) -> float | None:
        """Take a unit; return None, or, if all are used, the seconds until there may be one."""
        found = self._scopes.get(scope) or self._known(scope, limit)
        share, now = found.share, self._loop.time()
        if not found.queue and share.take():
            if share.low(now):
                self._settle_soon(scope)
            return None
        if self._alone:
            self._settle_soon(scope)
            return self._take_alone(share)
        refused = share.refused_for(now)
        return refused if refused > 0 else await self._held(scope, found)

    def take_anyway(self, scope: str, limit: ShareLimit) -> None:
        found = self._scopes.get(scope) or self._known(scope, limit)
        found.share.take_anyway()
        if found.share.free < 0:
            self._settle_soon(scope)

    def give_back(self, scope: str) -> None:
        found = self._scopes[scope]
        found.share.give_back()
        found.admit(found.share.take)

    def _known(self, scope: str, limit: ShareLimit) -> _Scope:
        found = self._scopes[scope] = _Scope(Share(scope, limit))
        return found

    @property
    def _alone(self) -> bool:
        return self._away or self._end.is_set()

    def _take_alone(self, share: Share) -> float | None:
        now = self._loop.time()
        if share.take_alone(self._nodes, now):
            return None
        return max(0.0, share.refused_for(now))

    async def _held(self, scope: str, found: _Scope) -> float | None:
        future = found.wait()
        self._settle_soon(scope)
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                return await future
        except TimeoutError:
            if _answered(future):
                return future.result()
            if found.share.recalling:
                return REFUSE_SECONDS  # a node that does not answer has what is left
            self._be_alone("the database is slow")
            return self._take_alone(found.share)
        except asyncio.CancelledError:
            if _answered(future) and future.result() is None:
                found.share.give_back()
                found.admit(found.share.take)
            raise
        finally:
            found.leave(future)

    # ------------------------------------------------------------------ settling

    def _notified(self, payload: str) -> None:
        """Take a recall, or news of one; called on the thread of the notices."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._recalled, payload)

    def _recalled(self, payload: str) -> None:
        number, node, scope = payload.split(" ", 2)
        found = self._scopes.get(scope)
        if found is None or node == self._fence.node:
            return
        if number != "0":
            found.share.recalled(int(number))
        elif not found.queue:
            return
        self._settle_soon(scope)

    def _settle_soon(self, scope: str) -> None:
        self._due.setdefault(scope, 0)
        self._more.set()

    async def _settle_all(self) -> None:
        while not self._end.is_set():
            self._more.clear()
            now = self._loop.time()
            if now >= self._look_at:
                self._look(now)
                await self._tidy(now)
            answered = await self._settle(now)
            # However many calls come while it is away, it is asked anew at intervals.
            event, waits = (self._more, IDLE_SECONDS) if answered else (self._end, AGAIN_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(waits):
                    await event.wait()

    def _look(self, now: float) -> None:
        """Find what was not used, and what need not be remembered."""
        self._look_at = now + IDLE_SECONDS
        for scope, found in list(self._scopes.items()):
            surplus = found.share.look()
            if found.share.over:
                del self._scopes[scope]
            elif surplus or not found.share.stated:
                self._due[scope] = surplus

    async def _tidy(self, now: float) -> None:
        with contextlib.suppress(StorageUnavailable):
            self._nodes = await self._control.run(limit_shares.count_nodes)
            if now >= self._forget_at:
                self._forget_at = now + FORGET_SECONDS
                await self._control.run(limit_shares.forget_full)

    async def _settle(self, now: float) -> bool:
        """Settle what has come up; return whether the database could be asked."""
        due, self._due = self._due, {}
        stated = [
            (found, tuple(found.queue), found.share.state(now, surplus))
            for scope, surplus in due.items()
            if (found := self._scopes.get(scope)) is not None and (surplus or found.share.due(now))
        ]
        if not stated:
            return True
        try:
            grants, self._nodes = await self._control.run(
                limit_shares.settle, self._fence, [statement for *_, statement in stated]
            )
        except Exception as error:
            self._unanswered(error, [found for found, *_ in stated])
            return False
        if self._away:
            self._away = False
            log.info("limits are shared with the other nodes again")
        for (found, asked, statement), grant in zip(stated, grants, strict=True):
            self._granted(found, asked, statement, grant)
        return True

    def _granted(
        self,
        found: _Scope,
        asked: tuple[asyncio.Future[float | None], ...],
        stated: ShareStatement,
        grant: ShareGrant,
    ) -> None:
        share, now = found.share, self._loop.time()
        share.granted(stated, grant, now)
        found.admit(share.take)
        if grant.recalling:
            return
        if grant.granted < stated.need:
            found.refuse(asked, max(0.0, share.refused_for(now)))
        if found.queue:
            self._settle_soon(share.scope)

    def _unanswered(self, error: Exception, asked: list[_Scope]) -> None:
        if isinstance(error, StaleNode):
            self._end.set()  # the server is about to end; the others have what it had
        elif not isinstance(error, StorageUnavailable):
            log.error("shares of limits could not be settled", exc_info=error)
        for found in asked:
            found.share.unanswered()
            self._settle_soon(found.share.scope)
        self._be_alone(str(error))

    def _be_alone(self, reason: str) -> None:
        """Count for this node, until the database answers."""
        if not self._away:
            self._away = True
            log.warning("limits are counted by this node alone", reason=reason)
        self._decide_alone()

    def _decide_alone(self) -> None:
        """Decide about the calls that wait."""
        now = self._loop.time()
        for found in self._scopes.values():
            share = found.share
            found.admit(lambda share=share: share.take_alone(self._nodes, now))
            found.refuse(tuple(found.queue), max(0.0, share.refused_for(now)))


def _answered(future: asyncio.Future[float | None]) -> bool:
    return future.done() and not future.cancelled()
