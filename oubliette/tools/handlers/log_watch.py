"""LogWatch, which waits for the log to grow, for one call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from oubliette.actors.store.actor import FollowLog, LogGrew
from oubliette.ids import new_uuid
from oubliette.kit import Actor, Down, Message, Reply, handles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oubliette.kit import Deferred, Ref
    from oubliette.tools.services import ToolServices

FOLLOW_SECONDS: Final = 10.0


class WaitForGrowth(Message, Reply[bool]):
    """To a LogWatch: answered once there are events that were committed after the last answer."""


class LogWatch(Actor):
    """Follower of the log, for as long as a call lasts. It ends with the store's actor.

    Args:
        store: That actor.
    """

    def __init__(self, store: Ref) -> None:
        super().__init__()
        self._store = store
        self._grown = False
        self._waiting: Deferred | None = None

    async def on_start(self) -> None:
        self.watch(self._store)

    @handles(Down)
    def _store_down(self, _: Down) -> None:
        self.stop()

    @handles(LogGrew)
    def _grew(self, _: LogGrew) -> None:
        self._grown = True
        self._answer()

    @handles(WaitForGrowth)
    def _wait(self, _: WaitForGrowth) -> None:
        self._waiting = self.defer()
        self._answer()

    def _answer(self) -> None:
        if self._grown and self._waiting is not None:
            self._waiting.set(True)
            self._grown, self._waiting = False, None


@contextlib.asynccontextmanager
async def log_watch(services: ToolServices, *, wanted: bool) -> AsyncGenerator[Ref | None]:
    """Follow the log during a call; None: nothing is to be waited for, or no store runs.

    What is committed before the block begins can be read in it.
    """
    store = services.store
    if not wanted or store is None or services.spawn is None:
        yield None
        return
    watch = services.spawn(LogWatch, store, name=f"log-watch/{new_uuid()}")
    try:
        await store.ask(FollowLog(name=watch.name), timeout=FOLLOW_SECONDS)
        yield watch
    finally:
        await watch.stop()
