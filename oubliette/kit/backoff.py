"""Delays before another attempt, from a tenacity wait object; a timer does the waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import tenacity

Backoff = Callable[[tenacity.RetryCallState], float]
"""A tenacity wait object, such as `tenacity.wait_exponential(multiplier=0.05, max=2.0)`."""

BACKOFF: Final[Backoff] = tenacity.wait_exponential_jitter(multiplier=0.02, max=5.0, jitter=0.02)
"""Delays before the restarts of an actor that fails again and again."""


def backoff_delay(wait: Backoff, failures: int) -> float:
    """Return the seconds to wait before the next attempt, after `failures` in a row (from 1)."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = failures
    return wait(state)


class Failures:
    """Failures in a row of one thing that is tried again and again.

    Args:
        wait: the delays between two attempts.
    """

    def __init__(self, wait: Backoff) -> None:
        self._wait = wait
        self._count = 0

    def next_delay(self) -> float:
        """Count a failure, and return the seconds to wait before the next attempt."""
        self._count += 1
        return backoff_delay(self._wait, self._count)

    def reset(self) -> None:
        """Forget the failures: an attempt succeeded."""
        self._count = 0
