"""Attempts to open a control link: which one counts, when the next is due, when a guest is gone."""

from __future__ import annotations

from typing import Final

from tenacity import wait_exponential_jitter

from oubliette.kit.retry import Failures

GONE_SECONDS: Final = 2.0  # a live guest listens; this long without is not a short interruption
_BACKOFF: Final = wait_exponential_jitter(multiplier=0.02, max=2.0, jitter=0.02)


class LinkAttempts:
    """Numbered attempts to open the control link to one container after another."""

    def __init__(self) -> None:
        self._number = 0
        self._failures = Failures(_BACKOFF)
        self._absent_since: float | None = None
        self.connecting = False
        """Whether the latest attempt has not ended yet."""

    def begin(self) -> int:
        """Return the number of a new attempt; what earlier ones report counts no more."""
        self._number += 1
        self.connecting = True
        return self._number

    def is_latest(self, number: int) -> bool:
        return number == self._number

    def container_changed(self) -> None:
        """Forget the failures: they were those of another container."""
        self._failures.reset()
        self._absent_since = None

    def opened(self) -> None:
        """Record that the latest attempt has opened a link."""
        self.connecting = False
        self._failures.reset()
        self._absent_since = None

    def failed(self, now: float, *, absent: bool, unusable: bool) -> bool:
        """Record that the latest attempt failed, and return whether to report the guest as gone.

        Args:
            now: monotonic seconds.
            absent: whether no process listens. It is gone if none does for GONE_SECONDS.
            unusable: whether no guest of ours listens, and none ever will.
        """
        self.connecting = False
        if not absent:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now
        gone = self._absent_since is not None and now - self._absent_since >= GONE_SECONDS
        if gone or unusable:
            self._absent_since = None
        return gone or unusable

    def next_delay(self) -> float:
        return self._failures.next_delay()
