"""Frequency of the cyclic garbage collection: low during the start, Python's default afterwards.

Imports make objects that stay, and each collection traverses more of them. Once everything is
loaded, these objects are frozen, which leaves few to traverse: a collection then takes a
millisecond instead of a tenth of a second.
"""

from __future__ import annotations

import gc
from typing import Final

_AT_START: Final = 10_000
"""Number of new objects that triggers a collection during the start."""
_USUAL: Final = gc.get_threshold()


def collect_rarely() -> None:
    """Reduce the frequency of collections; call it before the imports of the server."""
    gc.set_threshold(_AT_START)


def settle() -> None:
    """Exclude all present objects from collections, and restore the default frequency."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
