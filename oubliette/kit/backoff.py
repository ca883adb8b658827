"""Delays before another attempt, from a tenacity wait object; a timer does the waiting."""

from __future__ import annotations

from collections.abc import Callable

import tenacity

Backoff = Callable[[tenacity.RetryCallState], float]
"""A tenacity wait object, such as `tenacity.wait_exponential(multiplier=0.05, max=2.0)`."""


def backoff_delay(wait: Backoff, failures: int) -> float:
    """Return the seconds to wait before the next attempt, after `failures` in a row (from 1)."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = failures
    return wait(state)
