"""How large a result may be, so that every client can take it.

A result travels twice in one message: structured, and as text, where JSON in a string grows by its
escapes. Clients of the MCP Python SDK drop a connection whose message is larger than 1 MiB
(`max_sse_event_size`), so sizes are counted as a message has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from oubliette.runtime.store.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MAX_MESSAGE: Final = 960_000
"""Bytes of one message with a result in it."""
MAX_PARTS: Final = 840_000
"""Bytes that the parts of a listing or page may have in a message."""
MAX_TEXT: Final = 120_000
"""Bytes of one long text (a prompt, a final response), as JSON."""
LEAST_TEXT: Final = 40_000
"""Bytes of such a text beside a full page."""
SHORT_TEXT: Final = 2_000
"""Bytes of such a text in a listing."""
_SMALL: Final = 2_000
"""Below this a bound will do instead of a count."""


def size(value: Any) -> int:
    """Bytes of `value` as JSON."""
    return len(encode(value))


def cost(value: Any) -> int:
    """Bytes that `value` takes in a message: structured, and as text with its escapes."""
    text = encode(value)
    if len(text) <= _SMALL:
        return 3 * len(text)
    return len(text) + len(encode(text.decode()))


def cut(text: str | None, most: int) -> str | None:
    """`text`, or its beginning with a word about the rest, within `most` bytes as JSON."""
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
    """As many of `parts`, from the first on, as a message takes, one at least.

    Returns them, what they take, and whether some were left out.
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
    """Bytes of a text that stands beside parts which take `used`; a third, for its escapes."""
    return max(LEAST_TEXT, (MAX_MESSAGE - used - 20_000) // 3)
