"""Import of structlog without rich.

structlog formats tracebacks with rich if it is installed. We never use that, since such tracebacks
show local variables and keys among them, and its import takes longer than that of the whole server.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from types import ModuleType

_DRAWERS: Final = ("rich", "rich.pretty", "rich.console", "rich.traceback", "better_exceptions")


def import_structlog() -> None:
    """Import structlog as if rich were missing; other modules still find it.

    No effect if structlog is imported already. To be called before threads start.
    """
    if "structlog" in sys.modules:
        return
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    kept = {name: modules[name] for name in _DRAWERS if name in modules}
    # None there makes an import fail as if there were no such module (Python reference, 5.3.1).
    modules.update(dict.fromkeys(_DRAWERS))
    try:
        import_module("structlog")
    finally:
        for name in _DRAWERS:
            del modules[name]
        modules.update(kept)
