"""Single malloc arena for all threads of the server.

glibc gives each new thread an arena of its own. Python's threads take turns anyway, so it speeds up
nothing here, while the allocations of the store's threads are spread over many half-empty arenas: a
quarter of the memory of a hundred idle sessions.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8  # <malloc.h> of glibc; other C libraries have no arenas


def use_one_arena() -> None:
    """Limit the C library to one arena; to be called before threads start."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
