"""Size limits of results, so that every client accepts them.

A result is sent twice in one message: structured, and as text, where JSON in a string grows by its
escapes. Clients of the MCP Python SDK drop a connection whose message is larger than 1 MiB
(`max_sse_event_size`), so sizes are counted as in a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from oubliette.errors import InvalidParameter
from oubliette.json_values import UNKNOWN_SIZE
from oubliette.runtime.store.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MAX_MESSAGE: Final = 960_000
"""Maximum bytes of one message with a result."""
MAX_PARTS: Final = 840_000
"""Maximum bytes of the parts of a listing or page in a message."""
MAX_TEXT: Final = 120_000
"""Maximum bytes of one long text (a prompt, a final response), as JSON."""
LEAST_TEXT: Final = 40_000
"""Bytes of such a text that fit beside a full page."""
SHORT_TEXT: Final = 2_000
"""Maximum bytes of such a text in a listing."""
_SMALL: Final = 2_000
"""Below this size a bound is used instead of a count."""


def size(value: Any) -> int:
    """Return the bytes of `value` as JSON; roughly, if it has no such form."""
    try:
        return len(encode(value))
    except InvalidParameter:
        return UNKNOWN_SIZE


def cost(value: Any) -> int:
    """Return the bytes of `value` in a message: structured, and as text with its escapes."""
    try:
        text = encode(value)
    except InvalidParameter:
        return MAX_MESSAGE
    if len(text) <= _SMALL:
        return 3 * len(text)
    return len(text) + len(encode(text.decode()))


def cut(text: str | None, most: int) -> str | None:
    """Return `text`, or its beginning with a note about the rest, within `most` bytes as JSON."""
    if text is None or len(text) * 6 <= most:
        return text
    if len(text) <= most and size(text) <= most:
        return text
    mark = f"… (cut; {len(text)} characters)"
    room = most - size(mark)
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        if size(text[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low] + mark


def fitting(parts: Iterable[T], most: int = MAX_PARTS) -> tuple[list[T], int, bool]:
    """Select as many of `parts`, from the first on, as fit into a message, at least one.

    Returns them, their bytes in a message, and whether some were left out.
    """
    fit: list[T] = []
    used = 0
    for part in parts:
        taken = cost(part)
        if fit and used + taken > most:
            return fit, used, True
        used += taken
        fit.append(part)
    return fit, used, False


def room_for_text(used: int) -> int:
    """Return the bytes for a text beside parts of `used` bytes; a third, for its escapes."""
    return max(LEAST_TEXT, (MAX_MESSAGE - used - 20_000) // 3)
