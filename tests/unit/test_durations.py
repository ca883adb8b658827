"""Durations as people write them."""

from __future__ import annotations

import re
import time

import pytest
import typer

from oubliette.cli.terminal.times import since, since_in_logs
from oubliette.durations import PATTERN, seconds_of
from oubliette.errors import InvalidParameter


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60.0),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("90s", 90.0),
        ("1.5m", 90.0),
        ("1h30m", 5400.0),
        ("30d", 2_592_000.0),
        ("2w", 1_209_600.0),
    ],
)
def test_a_duration_is_numbers_with_units_or_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert re.search(PATTERN, text)


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "5 m", "5M", "1h30", "h", "1e3", "nan", "inf", "5s\n", "9" * 200]
)
def test_anything_else_is_refused_and_told_what_is_taken(text: str) -> None:
    with pytest.raises(InvalidParameter, match="such as 90s, 30m"):
        seconds_of(text)


def test_since_is_how_far_back_or_a_moment() -> None:
    assert since("1h") == pytest.approx(time.time() - 3600, abs=5)
    assert since("90") == pytest.approx(time.time() - 90, abs=5)
    assert since("1970-01-01T01:00:00Z") == 3600
    assert since("1970-01-01 01:00:00") == 3600
    assert since("1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(typer.BadParameter, match="neither a moment"):
        since("yesterday")


def test_an_index_where_a_time_is_wanted_is_told_where_it_belongs() -> None:
    for text in ("5", "-1"):
        with pytest.raises(typer.BadParameter, match=f"say --after {text}"):
            since_in_logs(text)
    assert since_in_logs("5s") == pytest.approx(time.time() - 5, abs=5)
