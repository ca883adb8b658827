"""Durations in text: `90s`, `30m`, `1h30m`, `30d`; a plain number is seconds."""

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
"""Units and their seconds."""

FORM: Final = "seconds, or numbers with units: ms, s, m, h, d, w, such as 90s, 30m, 1h30m or 30d"
"""Description of valid durations, for errors and help."""

PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$|^[0-9]+(\.[0-9]+)?$"
"""Regular expression (JSON Schema) of the texts that `seconds_of` accepts."""

LONGEST: Final = 100  # characters

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")


def seconds_of(text: str) -> float:
    """Return the seconds of a duration: numbers with units, or one number of seconds.

    Raises:
        InvalidParameter: the text is no duration; the message begins with the text, so that callers
            can put the field's name before it.
    """
    if len(text) > LONGEST or not re.search(PATTERN, text) or text.endswith("\n"):
        raise InvalidParameter(f"{text[:LONGEST]!r} is no duration, which is {FORM}")
    parts = _PART.findall(text)
    if not parts:
        return float(text)
    return sum(float(number) * UNITS[unit] for number, unit in parts)
