"""SharedKeys, which reads the API keys again when another node has changed them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from oubliette.runtime.store.postgres.notices import Notices
    from oubliette.tools.auth.api_keys import ApiKeys

CHANNEL: Final = "oubliette_keys"
"""Channel on which the database notifies changes of tokens."""
RETRY_SECONDS: Final = 1.0
"""Time until keys that could not be read are read again."""

_log = structlog.get_logger("oubliette.keys")


class SharedKeys:
    """Keys of this node, kept as they are in the database. `start` it, and `aclose` it at the end.

    Args:
        keys: Registry of this node, loaded.
        notices: Of the database.
    """

    def __init__(self, keys: ApiKeys, notices: Notices) -> None:
        self._keys = keys
        self._notices = notices
        self._stale = False
        """Whether something may have changed since the latest read began."""
        self._closed = False
        self._reading: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to follow the changes; call it on the loop of the keys."""
        self._loop = asyncio.get_running_loop()
        self._notices.follow(CHANNEL, lambda _: self._notified(), self._notified)

    async def aclose(self) -> None:
        """Read nothing any more."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _notified(self) -> None:
        """Read the keys; called on the thread of the notices."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there are no keys left
            self._loop.call_soon_threadsafe(self._changed)

    def _changed(self) -> None:
        self._stale = True
        if self._reading is None and not self._closed:
            self._reading = self._loop.create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._stale:
                self._stale = False
                await self._keys.refresh()
        except OublietteError as error:
            _log.warning("keys not read, those of before count", reason=error.message)
            self._retry = self._loop.call_later(RETRY_SECONDS, self._changed)
        finally:
            self._reading = None
