"""Values that an agent says, checked before anything relies on them.

An agent's output is anybody's: a list where a text belongs, a number of five thousand digits, a
thousand objects one in the other. What is not what it should be counts as not said.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

Json = dict[str, Any]

MAX_DEPTH: Final = 200
"""Levels of a message. Whoever writes it down or passes it on has to go as deep, and Python goes no
deeper than its stack."""
MAX_COUNT: Final = (1 << 53) - 1
"""The largest number of tokens: every reader of JSON can hold it, and the store sums of it."""
MAX_DOLLARS: Final = 1e9
_DIGITS: Final = 15


def message_of(content: bytes) -> Json | None:
    """The object that a line is; None where it is no JSON, no object, or nested too deeply."""
    try:
        message: Any = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if not isinstance(message, dict):
        return None
    fields = cast("Json", message)
    brackets = content.count(b"[") + content.count(b"{")
    return None if brackets > MAX_DEPTH and _is_deep(fields) else fields


def _is_deep(message: Json) -> bool:
    level: list[Json | list[Any]] = [message]
    for _ in range(MAX_DEPTH):
        level = [
            cast("Json | list[Any]", inner)
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def word(value: object) -> str:
    """`value` where it is a text, else an empty one: unlike any value, it can be looked up."""
    return value if isinstance(value, str) else ""


def is_turn(value: object) -> bool:
    """Whether this can be the number of a turn."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def turn_number(digits: str) -> int | None:
    """The turn that these digits name; None where they are none, or more than any turn has."""
    good = digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
    return int(digits) if good else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """Whether this can be a number of tokens."""
    return is_turn(value)


def count(*values: object) -> int:
    """These numbers of tokens together; what is none counts as 0."""
    good = (cast("float", value) for value in values if _is_number(value))
    return min(sum(int(value) for value in good if 0 <= value <= MAX_COUNT), MAX_COUNT)


def is_dollars(value: object) -> bool:
    """Whether this can be a price in US dollars."""
    return _is_number(value) and 0 <= cast("float", value) <= MAX_DOLLARS


def dollars(value: object) -> float:
    """A price in US dollars; 0 for what is none."""
    return float(cast("float", value)) if is_dollars(value) else 0.0
