"""CommitNews, by which the writer of a database wakes the tails of the log in its own process.

Other processes are notified by the server, and so is this one, which knows its own notification by
the token in it: the tail was woken before, and the way over the server takes longer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from oubliette.ids import new_uuid

if TYPE_CHECKING:
    from collections.abc import Callable


class CommitNews:
    """Those who follow the log in this process; thread-safe."""

    def __init__(self) -> None:
        self.token = new_uuid()
        """Payload of the notifications of this process."""
        self._lock = threading.Lock()
        self._followers: tuple[Callable[[], object], ...] = ()

    def follow(self, wake: Callable[[], object]) -> None:
        """Call `wake` after each commit of events, on the thread of the writer; must be quick."""
        with self._lock:
            self._followers += (wake,)

    def leave(self, wake: Callable[[], object]) -> None:
        """Undo `follow`; a call that has begun may still be under way."""
        with self._lock:
            self._followers = tuple(each for each in self._followers if each != wake)

    def committed(self) -> None:
        for wake in self._followers:
            wake()
