"""How large a result may be, so that every client can take it.

A result travels twice in one message, structured and as text, where JSON in a string grows by its
escapes: three times its own size at worst, usually two. Clients of the MCP Python SDK drop a
connection whose message is larger than 1 MiB (`max_sse_event_size`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from oubliette.runtime.store.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MAX_MESSAGE: Final = 960_000
"""Bytes of one message with a result in it."""
MAX_RESULT: Final = 280_000
"""Bytes of a structured result."""
MAX_TEXT: Final = 60_000
"""Bytes of one long text (a prompt, a final response) within a result of many parts."""
SHORT_TEXT: Final = 2_000
"""Bytes of such a text in a listing."""


def size(value: Any) -> int:
    """Bytes of `value` as JSON."""
    return len(encode(value))


def doubled(value: Any) -> int:
    """Bytes of `value` in a message that has it as structured content and as text."""
    text = encode(value)
    return len(text) + len(encode(text.decode()))


def cut(text: str | None, most: int) -> str | None:
    """`text`, or its beginning with a word about the rest, within `most` bytes as JSON."""
    if text is None or (len(text) * 6 <= most) or size(text) <= most:
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


def fitting(parts: Iterable[T], most: int = MAX_RESULT) -> tuple[list[T], bool]:
    """As many of `parts`, from the first on, as fit into `most` bytes, one at least.

    Returns them, and whether some were left out.
    """
    fit: list[T] = []
    used = 0
    for part in parts:
        used += size(part) + 1
        if fit and used > most:
            return fit, True
        fit.append(part)
    return fit, False
