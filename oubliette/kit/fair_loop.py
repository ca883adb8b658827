"""Fair turns on a loop: what is ready runs in the order of the time that its owner has used.

asyncio runs all that is ready, in the order in which it became so. There a principal with a hundred
tasks has a hundred turns for one of another, and each step of the other's call waits for all of
them. A `FairQueue` takes the place of that order. Each callback belongs to the principal in its
context (`working_for`), and the next one to run is of the principal that has used the least time.
The loop looks at its sockets after each `ROUND`.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

working_for: Final = ContextVar("working_for", default="")
"""The principal for which the current task works; empty: the server itself."""

ROUND: Final = 0.0003
"""Seconds for which callbacks run before the loop looks at its sockets again."""
TURNS: Final = 500
"""Turns of principals in a round, at most: the loop asks for each of them, also when the round is
over."""
CREDIT: Final = 0.2
"""Seconds that a principal may use ahead of others after a pause: its calls are short, and come one
after the other."""
LONGEST: Final = 0.5
"""Seconds of one turn that count. Turns are short; in a longer one the process was stopped, or code
was imported that all use, and its principal would wait as long while others are busy."""
MANY: Final = 1000
"""Principals that are remembered while all of them rest."""


class _Owner:
    """The callbacks of one principal, and the time that it has used."""

    __slots__ = ("ready", "used", "waits")

    def __init__(self) -> None:
        self.ready: deque[asyncio.Handle] = deque()
        self.used = 0.0
        self.waits = False
        """Whether it is in the order of those that wait for their turn."""


class _RoundOver:
    """A callback that the loop takes for a cancelled one: the round is over."""

    _cancelled = True


_ROUND_OVER: Final[Any] = _RoundOver()


class FairQueue:
    """The callbacks of a loop that are ready, in place of asyncio's `deque`.

    The server's own come first in each round, in their order: they are short. The callbacks of each
    principal keep their order too.

    Args:
        ready: Those that are ready at the start.
    """

    def __init__(self, ready: Iterable[asyncio.Handle] = ()) -> None:
        self._arrived = deque(ready)
        self.append = self._arrived.append  # of any thread
        self._own: deque[asyncio.Handle] = deque()
        self._own_now = 0
        """Those of the server's own that belong to this round."""
        self._owners: dict[str, _Owner] = {}
        self._queued: set[int] = set()
        """By id: what waits for a principal's turn. A socket is seen again while its read waits."""
        self._order: list[tuple[float, int, _Owner]] = []
        """Heap of those that wait, by the time that they have used, then in their order."""
        self._count = itertools.count()
        self._floor = 0.0
        """Time that the one which had the latest turn had used before."""
        self._running: _Owner | None = None
        self._since = 0.0
        self._until = 0.0

    def __bool__(self) -> bool:
        """Return whether anything is ready; the loop asks before it waits for its sockets."""
        if self._running is not None:
            self._charge(perf_counter())
        return bool(self._arrived or self._queued or self._own)

    def __len__(self) -> int:
        """Begin a round: return how many callbacks the loop may ask for in it."""
        if self._running is not None:
            self._charge(perf_counter())
        self._sort()
        self._own_now = len(self._own)
        self._until = 0.0
        return self._own_now + min(len(self._queued), TURNS)

    def popleft(self) -> asyncio.Handle:
        """Remove and return the next one; nothing, once the round is over."""
        if self._own_now:
            self._own_now -= 1
            return self._own.popleft()
        now = perf_counter()
        if self._running is not None:
            self._charge(now)
        if self._arrived:
            self._sort()
        if not self._until:
            self._until = now + ROUND  # each round has one turn, however long the server's own took
        elif now >= self._until or self._own:
            return _ROUND_OVER
        if not self._order:
            return _ROUND_OVER
        owner = heapq.heappop(self._order)[2]
        self._floor = max(self._floor, owner.used)
        self._running, self._since = owner, now
        handle = owner.ready.popleft()
        self._queued.discard(id(handle))
        return handle

    def clear(self) -> None:
        """Forget all: the loop is closed."""
        for each in (self._arrived, self._own, self._owners, self._queued, self._order):
            each.clear()

    def _sort(self) -> None:
        arrived = self._arrived
        while arrived:
            handle: Any = arrived.popleft()
            whose = handle._context.get(working_for)
            if not whose:
                self._own.append(handle)
            elif id(handle) not in self._queued:
                self._queued.add(id(handle))
                self._add(whose, handle)

    def _add(self, whose: str, handle: asyncio.Handle) -> None:
        owner = self._owners.get(whose)
        if owner is None:
            if len(self._owners) >= MANY and not self._order:
                self._owners.clear()
            owner = self._owners[whose] = _Owner()
        owner.ready.append(handle)
        if not owner.waits:
            owner.waits = True
            owner.used = max(owner.used, self._floor - CREDIT)
            heapq.heappush(self._order, (owner.used, next(self._count), owner))

    def _charge(self, now: float) -> None:
        """Count the time of a turn that has ended."""
        owner, self._running = self._running, None
        assert owner is not None
        owner.used += min(now - self._since, LONGEST)
        if owner.ready:
            heapq.heappush(self._order, (owner.used, next(self._count), owner))
        else:
            owner.waits = False


def run_fairly(loop: asyncio.AbstractEventLoop) -> None:
    """Have a loop of asyncio's run what is ready in fair turns; no effect on others."""
    plain: object = getattr(loop, "_ready", None)
    if type(plain) is deque:
        ready = cast("deque[asyncio.Handle]", plain)
        loop._ready = FairQueue(ready)  # pyright: ignore[reportAttributeAccessIssue]
