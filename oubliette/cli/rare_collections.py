"""How often the server looks for cyclic garbage.

Python looks whenever there are 700 objects more than before, which imports and calls of tools reach
all the time; each tenth of a tenth look goes through everything there is, for a tenth of a second.
Nearly all that a call leaves behind is freed without it.
"""

from __future__ import annotations

import gc
from typing import Final

OBJECTS: Final = 10_000
"""Objects more than at the last look, before there is another: one or two megabytes."""


def collect_rarely() -> None:
    """Look less often for cyclic garbage; to be called before the imports of the server."""
    gc.set_threshold(OBJECTS)
