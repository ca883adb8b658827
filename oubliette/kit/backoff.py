"""Seconds to wait before trying again, from a tenacity wait object; the waiting is a timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tenacity

if TYPE_CHECKING:
    from tenacity.wait import wait_base


def backoff_delay(wait: wait_base, failures: int) -> float:
    """The delay before the next try, after `failures` in a row (from 1)."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = failures
    return wait(state)
