"""Durations as people write them: `90s`, `30m`, `1h30m`, `30d`; a plain number is seconds."""

from __future__ import annotations

import re
from typing import Final

from oubliette.errors import InvalidParameter

UNITS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}
"""Seconds of each unit."""

FORM: Final = "seconds, or numbers with units: ms, s, m, h, d, w, such as 90s, 30m, 1h30m or 30d"
"""What is taken, for errors and help."""

PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$|^[0-9]+(\.[0-9]+)?$"
"""The texts that `seconds_of` takes, as a regular expression of JSON Schema."""

LONGEST: Final = 100  # characters

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")


def seconds_of(text: str) -> float:
    """The seconds of a duration: one or more of a number and its unit; a number alone is seconds.

    Raises:
        InvalidParameter: it is no duration; the message begins with what was given, for callers
            that put the field's name before it.
    """
    if len(text) > LONGEST or not re.search(PATTERN, text) or text.endswith("\n"):
        raise InvalidParameter(f"{text[:LONGEST]!r} is no duration, which is {FORM}")
    parts = _PART.findall(text)
    if not parts:
        return float(text)
    return sum(float(number) * UNITS[unit] for number, unit in parts)
