"""The image of the tests, made from this machine's own files: a second, and no registry.

The programs of a small system (shell, core utilities, git, Python), the libraries that they need,
and nothing else. It fits engines that run on this very machine.
"""

from __future__ import annotations

from oubliette.testing.host_image import ensure_image

__all__ = ("ensure_image",)
