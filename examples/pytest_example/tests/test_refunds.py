"""A program that is killed makes each refund once."""

from __future__ import annotations

from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "refunds.py"


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_each_refund_is_made_once_over_a_kill(crash, nth: int) -> None:
    crash.run(PROGRAM, at=f"shop.before_refund@{nth}")
    assert (crash.home / "refunds").read_text().split() == ["A-17", "A-18", "A-19"]
