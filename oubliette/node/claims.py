"""ClusterClaims, which counts holders of limits in the database that all nodes share.

One task settles all that has come up since it last did, in one transaction. What it cannot settle
while the database is away is kept, and settled when the database answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from oubliette.errors import StaleNode, StorageUnavailable
from oubliette.runtime.store.postgres.cluster import limit_claims
from oubliette.runtime.store.postgres.cluster.limit_claims import LimitClaim

if TYPE_CHECKING:
    from oubliette.runtime.store.postgres.control_thread import ControlThread
    from oubliette.runtime.store.postgres.fence import NodeFence

AGAIN_SECONDS: Final = 1.0
"""Time after which what is left is settled again, unless something new comes up before."""
CLOSE_SECONDS: Final = 2.0
"""Time for what is left at the end."""

T = TypeVar("T")

log = structlog.get_logger("oubliette.node")


class _Waiting:
    """A claim that waits to be settled."""

    __slots__ = ("claim", "future")

    def __init__(self, claim: LimitClaim) -> None:
        self.claim = claim
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answer(self, *, granted: bool) -> None:
        if not self.future.done():
            self.future.set_result(granted)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ClusterClaims:
    """Claims of one epoch of a node: `start` it, and `aclose` it at the end.

    Args:
        control: Connection to the cluster's tables; runs from `start` to `aclose`.
        fence: The epoch.
    """

    def __init__(self, control: ControlThread, fence: NodeFence) -> None:
        self._control = control
        self._fence = fence
        # What comes up next for a holder follows from these: it is released first, then counted.
        self._released: dict[str, None] = {}
        self._counted: dict[str, LimitClaim] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ended: Exception | None = None
        """Reason for which nothing is settled any more."""

    async def start(self) -> None:
        """Release what earlier epochs of the node have left, but for calls that are open still.

        Raises:
            StorageUnavailable: the database does not answer.
            StaleNode: the epoch has ended.
        """
        await self._control.run(limit_claims.release_earlier, self._fence)
        self._task = asyncio.create_task(self._settle_all(), name="claims of limits")

    async def aclose(self) -> None:
        """Settle what is left, if the database answers in time, and refuse further claims."""
        if self._task is None:
            return
        self._ended = self._ended or StorageUnavailable("the server is stopping")
        self._more.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.shield(self._task)
        self._task.cancel()
        await asyncio.wait([self._task])
        for waiting in self._waiting.values():
            waiting.fail(self._ended)

    # ------------------------------------------------------------------ the port

    async def claim(self, holder: str, scope: str, most: int) -> bool:
        """Count a holder unless the scope is full; return whether it is counted.

        Raises:
            StorageUnavailable: the database does not answer.
            StaleNode: the epoch has ended.
        """
        if self._ended is not None:
            raise self._ended
        waiting = self._waiting.get(holder)
        if waiting is None:
            waiting = self._waiting[holder] = _Waiting(LimitClaim(holder, scope, most))
        self._more.set()
        try:
            return await asyncio.shield(waiting.future)
        except asyncio.CancelledError:
            self.release(holder)
            raise

    def count(self, holder: str, scope: str) -> None:
        """Count a holder whether the scope is full or not, as soon as the database answers."""
        if self._ended is None:
            self._counted[holder] = LimitClaim(holder, scope, None)
            self._more.set()

    def release(self, holder: str) -> None:
        """Release a holder as soon as the database answers."""
        if self._ended is not None:
            return
        self._counted.pop(holder, None)
        waiting = self._waiting.pop(holder, None)
        if waiting is not None:
            waiting.answer(granted=False)
        self._released[holder] = None
        self._more.set()

    # ------------------------------------------------------------------ settling

    @property
    def _left(self) -> bool:
        return bool(self._released or self._counted or self._waiting)

    async def _settle_all(self) -> None:
        while not isinstance(self._ended, StaleNode):
            self._more.clear()
            answered = await self._settle() if self._left else True
            if self._ended is not None and not self._left:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if answered else AGAIN_SECONDS):
                    await self._more.wait()

    async def _settle(self) -> bool:
        """Settle what has come up; return whether the database could be asked."""
        released = _taken(self._released)
        counted = _taken(self._counted)
        waiting = _taken(self._waiting)
        claims = [*counted.values(), *(each.claim for each in waiting.values())]
        try:
            refused = await self._control.run(
                limit_claims.settle, self._fence, released=released, claims=claims
            )
        except StaleNode as error:
            # What the epoch had is released by the node that has ended it.
            self._end(error, waiting)
            return False
        except Exception as error:
            if not isinstance(error, StorageUnavailable):
                log.exception("claims of limits could not be settled")
            self._keep(released, counted, waiting)
            for each in waiting.values():
                each.fail(StorageUnavailable(f"a limit cannot be checked now: {error}"))
            return False
        for holder, each in waiting.items():
            each.answer(granted=holder not in refused)
        return True

    def _keep(
        self,
        released: dict[str, None],
        counted: dict[str, LimitClaim],
        waiting: dict[str, _Waiting],
    ) -> None:
        """Keep what was not settled, or may not have been, beside what has come up since."""
        for holder, claim in counted.items():
            if holder not in self._released:
                self._counted.setdefault(holder, claim)
        # The claims fail; if they were settled all the same, no call holds what they have counted.
        self._released = {**released, **dict.fromkeys(waiting), **self._released}

    def _end(self, error: StaleNode, waiting: dict[str, _Waiting]) -> None:
        self._ended = error
        for each in (*waiting.values(), *_taken(self._waiting).values()):
            each.fail(error)
        self._released.clear()
        self._counted.clear()


def _taken(left: dict[str, T]) -> dict[str, T]:
    taken = dict(left)
    left.clear()
    return taken
