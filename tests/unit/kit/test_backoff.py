"""Delays before another attempt grow with the failures in a row."""

from __future__ import annotations

from tenacity import wait_exponential

from oubliette.kit.retry import Failures


def test_delays_grow_to_the_limit_and_begin_anew_after_a_success() -> None:
    failures = Failures(wait_exponential(multiplier=0.1, max=0.5))
    assert [failures.next_delay() for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    failures.reset()
    assert failures.next_delay() == 0.1
