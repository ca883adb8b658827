"""Wait for a home's lock with a deadline, which flock(2) does not have."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from oubliette.runtime.files.home import HomeLock

if TYPE_CHECKING:
    from pathlib import Path


class LockWait:
    """Acquisition of the lock in a thread. Leaving the `with` block releases it, even later.

    The thread ends with the process at the latest: it waits in the kernel, which only the lock can
    end.
    """

    def __init__(self, home: Path) -> None:
        self._lock = HomeLock(home)
        self._guard = threading.Lock()
        self._over = False
        self._error: OSError | None = None
        self._done = threading.Event()
        threading.Thread(target=self._wait, name="oubliette-lock", daemon=True).start()

    def within(self, seconds: float) -> bool:
        """Whether the lock is ours within `seconds`. Call again to wait longer.

        Raises:
            OSError: the lock cannot be acquired.
        """
        if not self._done.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._over = True
            self._lock.release()

    def _wait(self) -> None:
        try:
            self._lock.wait()
        except OSError as error:
            self._error = error
        with self._guard:
            if self._over:
                self._lock.release()
        self._done.set()
