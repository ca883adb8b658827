"""Checks of values in an agent's output, before anything relies on them.

An agent's output is untrusted: a list in place of a text, a number of five thousand digits, a
thousand nested objects. An invalid value is treated as missing.
"""

from __future__ import annotations

from typing import Any, Final, cast

from oubliette import json_values
from oubliette.json_values import ENVELOPE, MAX_INTEGER, MIN_INTEGER, check_values, parse

Json = dict[str, Any]

MAX_DEPTH: Final = json_values.MAX_DEPTH + ENVELOPE + 1  # levels of a message
MAX_COUNT: Final = (1 << 53) - 1
"""Largest number of tokens: every JSON reader and the store's sums can represent it."""
MAX_DOLLARS: Final = 1e9
_DIGITS: Final = 15


def message_of(content: bytes) -> Json | None:
    """Return the object in a line; None if it is none, or has a value that may not enter.

    An integer of more than 64 bits, which a model may write, is replaced by its text, because the
    rest of the message counts: it may be the end of a turn.
    """
    try:
        message = parse(content, integer=_integer)
        if not isinstance(message, dict):
            return None
        fields = cast("Json", message)
        check_values(fields, envelope=ENVELOPE, shows_integers=True)
    except (ValueError, RecursionError):
        return None
    return fields


def _integer(digits: str) -> int | str:
    fits = len(digits) <= len(str(MIN_INTEGER)) and MIN_INTEGER <= int(digits) <= MAX_INTEGER
    return int(digits) if fits else digits


def word(value: object) -> str:
    """Return `value` if it is a text, else an empty one: unlike other values, it is hashable."""
    return value if isinstance(value, str) else ""


def is_turn(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def turn_number(digits: str) -> int | None:
    """Return the turn number of these digits; None if they are invalid or too large."""
    good = digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
    return int(digits) if good else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    return is_turn(value)


def count(*values: object) -> int:
    """Return the sum of these numbers of tokens; an invalid one counts as 0."""
    good = (cast("float", value) for value in values if _is_number(value))
    return min(sum(int(value) for value in good if 0 <= value <= MAX_COUNT), MAX_COUNT)


def is_dollars(value: object) -> bool:
    return _is_number(value) and 0 <= cast("float", value) <= MAX_DOLLARS


def dollars(value: object) -> float:
    """Return a price in US dollars; 0 if it is invalid."""
    return float(cast("float", value)) if is_dollars(value) else 0.0
