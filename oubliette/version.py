"""Version of the package; below all other modules, so that each may import it."""

from __future__ import annotations

__version__ = "0.1.0"
