"""Last uses of keys, in memory at once and in the store at most every minute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.errors import OublietteError
from oubliette.runtime.store.operations import TouchToken

if TYPE_CHECKING:
    from oubliette.clock import Clock, TimerHandle
    from oubliette.runtime.store.operations import Commit

USE_EVERY: Final = 60.0  # seconds between writes of last uses

_log = structlog.get_logger("oubliette.keys")


class LastUses:
    """Times of the last use of each token since this server runs. Call `aclose` last."""

    def __init__(self, commit: Commit, clock: Clock) -> None:
        self._commit = commit
        self._clock = clock
        self._used: dict[str, float] = {}
        self._unwritten: dict[str, float] = {}
        self._timer: TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def touch(self, token_id: str) -> None:
        self._used[token_id] = self._unwritten[token_id] = self._clock.time()
        if self._timer is None:
            self._timer = self._clock.call_later(USE_EVERY, self._due)

    def of(self, token_id: str) -> float | None:
        """Return the time of the last use; None: not used since the server runs."""
        return self._used.get(token_id)

    def forget(self, token_id: str) -> None:
        self._used.pop(token_id, None)
        self._unwritten.pop(token_id, None)

    async def aclose(self) -> None:
        """Write the pending last uses."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        await self._write()

    def _due(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        try:
            await self._commit(
                tuple(TouchToken(token_id, at) for token_id, at in unwritten.items())
            )
        except OublietteError as error:
            # The last use is only informative; a lost one must not end anything.
            _log.warning("last uses of tokens not written", reason=error.message)
