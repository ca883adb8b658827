"""How often the server looks for cyclic garbage: while it starts rarely, then as Python does.

Imports make objects that stay, and each look goes through more of them. Once all of it is loaded,
it is taken out of the collector's sight, which leaves little to go through: a look for garbage then
takes a millisecond where it took a tenth of a second.
"""

from __future__ import annotations

import gc
from typing import Final

_AT_START: Final = 10_000
"""Objects more than at the last look, before there is another."""
_USUAL: Final = gc.get_threshold()


def collect_rarely() -> None:
    """Look seldom from now on; to be called before the imports of the server."""
    gc.set_threshold(_AT_START)


def settle() -> None:
    """Have no look go through what is there now, and look as often as Python does."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
